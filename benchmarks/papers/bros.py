"""BROS in the simulator: first come first served, round robin, BROS, its ablation, and Weir.

Set-up of the paper: OPT-13B on two A100 40 GB, ShareGPT prompts by a Poisson process online, sets
of synthetic documents offline, whole prompts, no prefix cache. ``bros_run`` runs one arm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchmarks.claims import Claim
from benchmarks.papers.ablation import ANY_MEMORY, PROMPTS_ALONE
from benchmarks.papers.bros_run import Outcome, Setup, shorter, simulate
from benchmarks.papers.paper import Options, PaperResult, Table, kept, parallel, spread

VLLM = ("vLLM, prompts first", "vLLM, mixed steps")
MAIN = (*VLLM, "round robin", "BROS, paged", "BROS", "weir")
MORE = (
    "BROS, most empty block",
    "weir, TPOT alone",
    PROMPTS_ALONE,
    ANY_MEMORY,
    "fixed priority",
    "adaptive",
    "aimd",
)
_BEST_VLLM = "vLLM"


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One profile, some rates; at ``more_at_s`` the further arms run too."""

    name: str
    profile: str
    rates_s: tuple[float, ...]
    seeds: int
    window_s: float = 60.0
    kv_tokens: int | None = None
    more_at_s: float | None = None


OPT = "a100-40gb-opt-13b-tp2"
STUDIES = (
    Study(name="opt-13b", profile=OPT, rates_s=(2.0, 4.0, 6.0, 8.0), seeds=2, more_at_s=8.0),
    Study(
        name="rtx-pro-6000",
        profile="rtx-pro-6000-llama-3.1-8b",
        rates_s=(6.0,),
        seeds=2,
        kv_tokens=58_000,
    ),
)

Rates = dict[float, dict[str, Outcome]]


def run(options: Options) -> PaperResult:
    """The paper's set-up, and RTX PRO 6000 with as large a cache."""
    claims: list[Claim] = []
    notes: list[str] = []
    tables: list[Table] = []
    for study in STUDIES[:1] if options.quick else STUDIES:
        if options.only and study.name not in options.only:
            continue
        seeds = [_seed(study, seed, options) for seed in options.seeds[: study.seeds]]
        claims += claims_of(study, seeds)
        notes += notes_of(study, seeds)
        tables += tables_of(study, seeds)
    return PaperResult(claims=tuple(claims), notes=tuple(notes), tables=tuple(tables))


def _seed(study: Study, seed: int, options: Options) -> Rates:
    cells = [
        (study, rate_s, seed, arm)
        for rate_s in study.rates_s
        for arm in (*MAIN, *(MORE if rate_s == study.more_at_s else ()))
    ]
    found = parallel(options, _Cell(options), cells)
    rates: Rates = {rate_s: {} for rate_s in study.rates_s}
    for (_, rate_s, _, arm), outcome in zip(cells, found, strict=True):
        rates[rate_s][arm] = outcome
    for arms in rates.values():
        arms[_BEST_VLLM] = min((arms[arm] for arm in VLLM), key=lambda o: o.latency_s)
    return rates


@dataclass(frozen=True, slots=True)
class _Cell:
    """Runs a cell, or reads what it came to before."""

    options: Options

    def __call__(self, cell: tuple[Study, float, int, str]) -> Outcome:
        study, rate_s, seed, arm = cell
        setup = Setup(
            profile=study.profile,
            data=self.options.data,
            rate_s=rate_s,
            window_s=study.window_s,
            seed=seed,
            kv_tokens=study.kv_tokens,
        )
        if self.options.quick:
            setup = shorter(setup)

        def make() -> dict[str, Any]:
            return asdict(simulate(setup, arm))

        return Outcome(**kept(self.options, "bros", f"{study.name}-{rate_s:g}-{seed}-{arm}", make))


# -- claims -----------------------------------------------------------------------------------


def _less(seeds: list[Rates], of: str, base: str, value: Callable[[Outcome], float]) -> list[float]:
    """Per seed: by how much less ``of`` has than ``base``, the mean over the rates."""
    return [
        fmean(1 - value(arms[of]) / value(arms[base]) for arms in rates.values()) for rates in seeds
    ]


def _largest(seeds: list[Rates], of: str, base: str) -> list[float]:
    """Per seed: by how much less latency, at the rate where it is most."""
    return [
        max(1 - arms[of].latency_s / arms[base].latency_s for arms in rates.values())
        for rates in seeds
    ]


def _mean(seeds: list[Rates], of: str, value: Callable[[Outcome], float]) -> list[float]:
    return [fmean(value(arms[of]) for arms in rates.values()) for rates in seeds]


def _latency(outcome: Outcome) -> float:
    return outcome.latency_s


def _offline(outcome: Outcome) -> float:
    return outcome.offline_s


def _ttft(outcome: Outcome) -> float:
    return outcome.ttft


def _tpot(outcome: Outcome) -> float:
    return outcome.tpot


def claims_of(study: Study, seeds: list[Rates]) -> list[Claim]:
    """The headlines of one study; only the paper's set-up has its targets."""
    main = study is STUDIES[0]
    at = "bros/" if main else f"bros/{study.name}/"
    where = "" if main else f" ({study.name})"

    def target(text: str) -> str | None:
        return text if main else None

    less = (
        ("latency", _BEST_VLLM, _latency, ">= 0.742", "normalised latency below vLLM"),
        ("latency-rr", "round robin", _latency, ">= 0.543", "normalised latency below round robin"),
        ("offline", _BEST_VLLM, _offline, "<= 0.05", "offline requests/s below vLLM (paper 0.113)"),
        ("offline-rr", "round robin", _offline, "<= 0.05", "the same, round robin (paper 0.088)"),
        (
            "latency-prompts-first",
            VLLM[0],
            _latency,
            None,
            "normalised latency below vLLM as it was",
        ),
        (
            "offline-prompts-first",
            VLLM[0],
            _offline,
            None,
            "offline requests/s below vLLM as it was",
        ),
    )
    claims = [
        spread(
            f"{at}{name}",
            f"BROS, {what}, mean over the rates{where}",
            "share",
            _less(seeds, "BROS", base, value),
            goal and target(goal),
        )
        for name, base, value, goal, what in less
    ]
    claims += [
        spread(
            f"{at}{name}-largest",
            f"BROS, normalised latency below {base}, at the best rate (the abstract: up to){where}",
            "share",
            _largest(seeds, "BROS", base),
            target(goal),
        )
        for name, base, goal in (
            ("latency", _BEST_VLLM, ">= 0.742"),
            ("latency-rr", "round robin", ">= 0.543"),
        )
    ]
    shares = (
        ("tpot", "TPOT attainment, BROS", "BROS", _tpot, ">= 0.655"),
        (
            "tpot-rr",
            "TPOT attainment, round robin (paper 0.473)",
            "round robin",
            _tpot,
            None,
        ),
        ("ttft", "TTFT attainment, BROS", "BROS", _ttft, None),
        ("ttft-rr", "TTFT attainment, round robin", "round robin", _ttft, None),
    )
    claims += [
        spread(
            f"{at}{name}",
            f"{what}{where}",
            "share",
            _mean(seeds, arm, value),
            goal and target(goal),
        )
        for name, what, arm, value, goal in shares
    ]
    return claims + _weir_claims(f"weir/{at}", where, seeds)


def _weir_claims(at: str, where: str, seeds: list[Rates]) -> list[Claim]:
    return [
        spread(
            f"{at}latency",
            f"Weir, normalised latency below BROS{where}",
            "share",
            _less(seeds, "weir", "BROS", _latency),
            ">= 0",
        ),
        spread(
            f"{at}offline",
            f"Weir, offline requests/s below BROS{where}",
            "share",
            _less(seeds, "weir", "BROS", _offline),
            "<= 0",
        ),
        *(
            spread(
                f"{at}{name}",
                f"{name.upper()} attainment, Weir less BROS{where}",
                "share",
                [
                    fmean(value(arms["weir"]) - value(arms["BROS"]) for arms in rates.values())
                    for rates in seeds
                ],
                ">= 0",
            )
            for name, value in (("ttft", _ttft), ("tpot", _tpot))
        ),
    ]


def notes_of(study: Study, seeds: list[Rates]) -> list[str]:
    """At which rates a headline holds, for its mean hides it, and why others are missed."""
    parts = []
    for rate_s in study.rates_s:
        own = [rates[rate_s] for rates in seeds]
        latency = fmean(1 - a["BROS"].latency_s / a[_BEST_VLLM].latency_s for a in own)
        offline = fmean(1 - a["BROS"].offline_s / a[_BEST_VLLM].offline_s for a in own)
        parts.append(f"{rate_s:g}/s {latency:.1%} at {offline:+.1%}")
    rates = "; ".join(parts)
    what = "normalised latency below vLLM's at the offline requests/s given up, by online rate"
    notes = [f"{study.name}, BROS: {what}: {rates}."]
    if study.more_at_s is not None:
        calm = [rates[min(study.rates_s)] for rates in seeds]
        busy = [rates[study.more_at_s] for rates in seeds]
        notes += [_bros_reason(min(study.rates_s), calm, study.more_at_s, busy)]
        notes += [_weirs_reason(study.more_at_s, busy)]
    return notes


Arms = list[dict[str, Outcome]]


def _over(seeds: Arms, arm: str, value: Callable[[Outcome], float]) -> float:
    return fmean(value(arms[arm]) for arms in seeds)


def _bros_reason(calm_s: float, calm: Arms, busy_s: float, busy: Arms) -> str:
    """What bounds BROS at the two ends of the rates."""
    step_s = _over(calm, "BROS", lambda o: o.step_s)
    token_s, vllm_s = _over(calm, "BROS", _latency), _over(calm, _BEST_VLLM, _latency)
    return (
        f"Why the means are missed. At {calm_s:g}/s 74.2% below vLLM would be "
        f"{1e3 * 0.258 * vllm_s:.0f} ms a token, and BROS, which fills steps with whole prompts up "
        f"to the least remaining time, has steps of {1e3 * step_s:.0f} ms: it takes "
        f"{1e3 * token_s:.0f} ms a token although hardly anybody waits. At {busy_s:g}/s the cache "
        f"is full: vLLM finishes {_over(busy, _BEST_VLLM, _offline):.2f} offline requests a second "
        f"and BROS {_over(busy, 'BROS', _offline):.2f}, for vLLM leaves online requests waiting "
        f"without KV ({_over(busy, _BEST_VLLM, _ttft):.0%} attain TTFT), which BROS serves "
        f"({_over(busy, 'BROS', _ttft):.0%}). Without shared blocks BROS would finish "
        f"{_over(busy, 'BROS, paged', _offline):.2f}."
    )


def _weirs_reason(rate_s: float, seeds: Arms) -> str:
    """What bounds Weir's offline work, measured by taking parts of it away."""

    def said(arm: str) -> str:
        offline_s, ttft = _over(seeds, arm, _offline), _over(seeds, arm, _ttft)
        return f"{offline_s:.2f} offline requests a second at {ttft:.1%} of TTFT"

    return (
        f"At {rate_s:g}/s the cache is full, and Weir preempts by recomputation where BROS copies: "
        f"BROS finishes {said('BROS')}, Weir {said('weir')}; without the TTFT objective "
        f"{said('weir, TPOT alone')}; with prompts that have time to spare as alone as others "
        f"{said(PROMPTS_ALONE)}; with steps as long where online fills the memory as elsewhere "
        f"{said(ANY_MEMORY)}."
    )


def tables_of(study: Study, seeds: list[Rates]) -> list[Table]:
    """Means over the seeds, a table a rate."""
    return [_table(study, rate_s, [rates[rate_s] for rates in seeds]) for rate_s in study.rates_s]


def _table(study: Study, rate_s: float, seeds: list[dict[str, Outcome]]) -> Table:
    def row(arm: str) -> tuple[str, ...]:
        own = [arms[arm] for arms in seeds]
        return (
            arm,
            f"{1e3 * fmean(o.latency_s for o in own):,.1f}",
            f"{fmean(o.ttft for o in own):.1%}",
            f"{fmean(o.tpot for o in own):.1%}",
            f"{fmean(o.offline_s for o in own):,.2f}",
            f"{fmean(o.offline_tokens_s for o in own):,.0f}",
            f"{fmean(o.preemptions for o in own):,.0f}",
            f"{fmean(o.copied_tokens for o in own):,.0f}",
            f"{1e3 * fmean(o.step_s for o in own):,.0f}",
            f"{fmean(o.unanswered for o in own):,.0f}",
        )

    header = (
        "arm",
        "normalised latency ms/token",
        "TTFT attained",
        "TPOT attained",
        "offline requests/s",
        "offline tokens/s",
        "preemptions",
        "tokens checkpointed",
        "mean step ms",
        "unanswered",
    )
    arms = tuple(arm for arm in (*MAIN, *MORE) if arm in seeds[0])
    return Table(
        title=f"{study.name}, {rate_s:g} online requests a second",
        header=header,
        rows=tuple(row(arm) for arm in arms),
    )
