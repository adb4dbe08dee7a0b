"""What BROS's studies come to: claims, the sentences that stand first, tables."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from benchmarks.claims import Claim
from benchmarks.papers.ablation import NO_ROOM, PROMPTS_ALONE
from benchmarks.papers.bros_run import PAGED, Outcome
from benchmarks.papers.bros_studies import BEST_VLLM, MAIN, MORE, VLLM, Arms, Rates, Study
from benchmarks.papers.paper import Table, spread


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


_BELOW = (
    ("latency", BEST_VLLM, _latency, ">= 0.742", "normalised latency below vLLM"),
    ("latency-rr", "round robin", _latency, ">= 0.543", "normalised latency below round robin"),
    ("offline", BEST_VLLM, _offline, "<= 0.05", "offline requests/s below vLLM (paper 0.113)"),
    ("offline-rr", "round robin", _offline, "<= 0.05", "the same, round robin (paper 0.088)"),
    ("latency-prompts-first", VLLM[0], _latency, None, "normalised latency below vLLM as it was"),
    ("offline-prompts-first", VLLM[0], _offline, None, "offline requests/s below vLLM as it was"),
)
_ATTAINED = (
    ("tpot", "TPOT attainment, BROS", "BROS", _tpot, ">= 0.655"),
    ("tpot-rr", "TPOT attainment, round robin (paper 0.473)", "round robin", _tpot, None),
    ("ttft", "TTFT attainment, BROS", "BROS", _ttft, None),
    ("ttft-rr", "TTFT attainment, round robin", "round robin", _ttft, None),
)


def claims_of(study: Study, seeds: list[Rates]) -> list[Claim]:
    """The headlines of one study; only the paper's set-up has its targets."""
    at = "bros/" if study.is_main else f"bros/{study.name.replace(', ', '-').replace(' ', '-')}/"
    where = "" if study.is_main else f" ({study.name})"
    if VLLM[0] not in study.arms:
        return _weir_claims(f"weir/{at}", where, seeds, paged=False)

    def share(name: str, what: str, values: list[float], target: str | None) -> Claim:
        goal = target if study.is_main else None
        return spread(f"{at}{name}", f"{what}{where}", "share", values, goal)

    return [
        *(
            share(name, f"BROS, {what}, mean over the rates", _less(seeds, "BROS", base, of), goal)
            for name, base, of, goal, what in _BELOW
        ),
        *(
            share(
                f"{name}-largest",
                f"BROS, normalised latency below {base}, at the best rate (the abstract: up to)",
                _largest(seeds, "BROS", base),
                goal,
            )
            for name, base, _, goal, _ in _BELOW[:2]
        ),
        *(
            share(name, what, _mean(seeds, arm, of), goal)
            for name, what, arm, of, goal in _ATTAINED
        ),
        *_weir_claims(f"weir/{at}", where, seeds, paged=True),
    ]


def _weir_claims(at: str, where: str, seeds: list[Rates], *, paged: bool) -> list[Claim]:
    """Weir beside BROS on blocks filled from both ends, and on paged ones where both ran."""
    made = _weir_beside(at, where, seeds, ("weir", "BROS"))
    if paged:
        made += _weir_beside(f"{at}paged/", f", both paged{where}", seeds, (PAGED, "BROS, paged"))
    return made


def _weir_beside(at: str, where: str, seeds: list[Rates], arms: tuple[str, str]) -> list[Claim]:
    weir, bros = arms
    return [
        spread(
            f"{at}latency",
            f"Weir, normalised latency below BROS{where}",
            "share",
            _less(seeds, weir, bros, _latency),
            ">= 0",
        ),
        spread(
            f"{at}offline",
            f"Weir, offline requests/s below BROS{where}",
            "share",
            _less(seeds, weir, bros, _offline),
            "<= 0",
        ),
        *(
            spread(
                f"{at}{name}",
                f"{name.upper()} attainment, Weir less BROS{where}",
                "share",
                [
                    fmean(value(arms[weir]) - value(arms[bros]) for arms in rates.values())
                    for rates in seeds
                ],
                ">= 0",
            )
            for name, value in (("ttft", _ttft), ("tpot", _tpot))
        ),
    ]


def not_measured(study: Study, absent: list[int]) -> list[str]:
    """A sentence on the seeds of which a run is not there: a seed counts whole or not at all."""
    if not absent:
        return []
    return [f"**{study.name}: not measured:** seeds {', '.join(map(str, absent))}."]


def notes_of(study: Study, seeds: list[Rates]) -> list[str]:
    """At which rates a headline holds, for its mean hides it, and why others are missed."""
    parts = []
    if not seeds or VLLM[0] not in study.arms:
        return []
    for rate_s in study.rates_s:
        own = [rates[rate_s] for rates in seeds]
        latency = fmean(1 - a["BROS"].latency_s / a[BEST_VLLM].latency_s for a in own)
        offline = fmean(1 - a["BROS"].offline_s / a[BEST_VLLM].offline_s for a in own)
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


def _over(seeds: list[Arms], arm: str, value: Callable[[Outcome], float]) -> float:
    return fmean(value(arms[arm]) for arms in seeds)


def _bros_reason(calm_s: float, calm: list[Arms], busy_s: float, busy: list[Arms]) -> str:
    """What bounds BROS at the two ends of the rates."""
    step_s = _over(calm, "BROS", lambda o: o.step_s)
    token_s, vllm_s = _over(calm, "BROS", _latency), _over(calm, BEST_VLLM, _latency)
    return (
        f"Why the mean against vLLM is missed. At {calm_s:g}/s 74.2% below vLLM would be "
        f"{1e3 * 0.258 * vllm_s:.0f} ms a token, and BROS, which fills steps with whole prompts up "
        f"to the least remaining time, has steps of {1e3 * step_s:.0f} ms: it takes "
        f"{1e3 * token_s:.0f} ms a token although hardly anybody waits. At {busy_s:g}/s more "
        f"online requests come than any arm serves: {_over(busy, BEST_VLLM, _ttft):.1%} of them "
        f"attain TTFT under vLLM, which serves by arrival and finishes "
        f"{_over(busy, BEST_VLLM, _offline):.2f} offline requests a second, and "
        f"{_over(busy, 'BROS', _ttft):.1%} under BROS, which serves online requests first and "
        f"finishes {_over(busy, 'BROS', _offline):.2f}; without shared blocks it would finish "
        f"{_over(busy, 'BROS, paged', _offline):.2f}."
    )


def _weirs_reason(rate_s: float, seeds: list[Arms]) -> str:
    """What bounds Weir's offline work, measured by taking parts of it away."""

    def said(arm: str) -> str:
        offline_s, ttft = _over(seeds, arm, _offline), _over(seeds, arm, _ttft)
        return f"{offline_s:.2f} offline requests a second at {ttft:.1%} of TTFT"

    return (
        f"At {rate_s:g}/s, on blocks filled from both ends BROS finishes "
        f"{said('BROS')}, Weir {said('weir')}; on blocks of one request each, where what gives way "
        f"is computed again, BROS {said('BROS, paged')}, Weir {said(PAGED)}. On the first Weir "
        f"finishes without the TTFT objective {said('weir, TPOT alone')}; with prompts that have "
        f"time to spare as alone as others {said(PROMPTS_ALONE)}; with no block kept free for "
        f"online requests "
        f"{said(NO_ROOM)}."
    )


def tables_of(study: Study, seeds: list[Rates]) -> list[Table]:
    """Means over the seeds, a table a rate; none without a seed."""
    if not seeds:
        return []
    return [_table(study, rate_s, [rates[rate_s] for rates in seeds]) for rate_s in study.rates_s]


def _table(study: Study, rate_s: float, seeds: list[Arms]) -> Table:
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
