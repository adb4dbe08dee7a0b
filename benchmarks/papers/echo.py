"""Echo in the simulator: the ablation BS, BS+E, BS+E+S, Echo, with AIMD and Weir beside it.

Set-up of the paper: Llama-3.1-8B on an A100 40 GB, a production day squeezed into minutes with
ShareGPT lengths online, LooGLE questions over long documents (or ShareGPT) all at once offline.
"""

from __future__ import annotations

from statistics import fmean

from benchmarks.claims import Claim
from benchmarks.papers.echo_run import ATTAINMENT, Outcome, Setup, Study, run_arm
from benchmarks.papers.paper import Options, PaperResult, Table, chosen, joined, parallel, spread

Seeds = list[dict[str, Outcome]]
"""By seed, the arms that were run."""

STUDIES = (
    Study(profile="a100-40gb-llama-3.1-8b", offline="loogle", rate_s=3.0),
    Study(profile="a100-40gb-llama-3.1-8b", offline="sharegpt", rate_s=3.0, seeds=2),
    Study(profile="rtx-pro-6000-llama-3.1-8b", offline="loogle", rate_s=4.0, seeds=2),
)


def run(options: Options) -> PaperResult:
    """The paper's set-up, its second offline set, and RTX PRO 6000."""
    return joined(_run(study, options) for study in chosen(options, STUDIES))


def _run(study: Study, options: Options) -> PaperResult:
    made = [_seed(study, seed, options) for seed in options.seeds[: study.seeds]]
    seeds = [seed for seed in made if seed]
    return PaperResult(
        claims=tuple(claims_of(study, seeds)),
        notes=tuple(notes_of(study, seeds)),
        tables=(table_of(study, seeds),) if seeds else (),
    )


def _seed(study: Study, seed: int, options: Options) -> dict[str, Outcome]:
    setup = Setup(
        profile=study.profile,
        offline=study.offline,
        data=options.data,
        rate_s=study.rate_s,
        window_s=120.0 if options.quick else 300.0,
        seed=seed,
    )
    arms = study.arms
    plain = parallel(options, run_arm, [(options, study, setup, arm) for arm in arms])
    return {arm: Outcome(**found) for arm, found in zip(arms, plain, strict=True) if found}


def _of(seeds: Seeds, arm: str) -> list[Outcome]:
    return [seed[arm] for seed in seeds if arm in seed]


def _over(seeds: Seeds, of: str, base: str) -> list[float]:
    both = [(seed[of], seed[base]) for seed in seeds if of in seed and base in seed]
    return [own.offline_s / other.offline_s for own, other in both if other.offline_s > 0]


_GAINS = (
    ("offline-gain", "Echo", "BS", ">= 3.3"),
    ("gain-estimator", "BS+E", "BS", ">= 1"),
    ("gain-selection", "BS+E+S", "BS+E", ">= 1"),
    ("gain-manager", "Echo", "BS+E+S", ">= 1"),
)
"""What each part of Echo adds: the claim, of which arm, over which, and the paper's target."""


def claims_of(study: Study, seeds: Seeds) -> list[Claim]:
    """The headlines of one study; only the main one has the paper's targets."""
    main = study is STUDIES[0]
    at = "echo/" if main else f"echo/{study.name.replace('@', '/')}/"
    where = "" if main else f" ({study.name})"
    gains = [
        spread(
            f"{at}{name}",
            f"offline tokens/s, {of} over {base}{where}",
            "times",
            _over(seeds, of, base),
            target if main else None,
        )
        for name, of, base, target in _GAINS
    ]
    hits = spread(
        f"{at}hit-rate",
        f"prefix hits of offline prompts at first admission{where}",
        "share",
        [own.hit_rate for own in _of(seeds, "Echo")],
        ">= 0.786" if main else None,
    )
    attainment = spread(
        f"{at}attainment",
        f"online requests whose tokens i all came within 1 s + i * 50 ms, Echo{where}",
        "share",
        [own.attainment for own in _of(seeds, "Echo")],
        ">= 0.9",
    )
    return [*gains, hits, attainment, *_weir_claims(seeds, at, where)]


def _weir_claims(seeds: Seeds, at: str, where: str) -> list[Claim]:
    return [
        spread(
            f"weir/{at}attainment",
            f"the same under Weir{where}",
            "share",
            [own.attainment for own in _of(seeds, "weir")],
            ">= 0.9",
        ),
        spread(
            f"weir/{at}offline-gain",
            f"offline tokens/s, Weir over Echo{where}",
            "times",
            _over(seeds, "weir", "Echo"),
            ">= 1",
        ),
    ]


def notes_of(study: Study, seeds: Seeds) -> list[str]:
    """Arms that were not run, and those that miss the objective, which no throughput makes up."""
    absent = [arm for arm in study.arms if not _of(seeds, arm)]
    missed = [
        f"{arm} {fmean(own.attainment for own in _of(seeds, arm)):.1%}"
        for arm in study.arms
        if any(own.attainment < ATTAINMENT for own in _of(seeds, arm))
    ]
    notes = []
    if absent:
        notes.append(f"**{study.name}: not measured:** {', '.join(absent)}.")
    if missed:
        notes.append(f"**{study.name}: below 90% attainment on some seed:** {', '.join(missed)}.")
    return notes


def table_of(study: Study, seeds: Seeds) -> Table:
    """Means over the seeds."""

    def row(arm: str) -> tuple[str, ...]:
        own = _of(seeds, arm)
        if not own:
            return (arm, *["-"] * (len(header) - 1))
        return (
            arm,
            f"{fmean(o.offline_s for o in own):,.0f}",
            f"{fmean(o.attainment for o in own):.1%}",
            f"{fmean(o.hit_rate for o in own):.1%}",
            f"{fmean(o.finished for o in own):,.0f}",
            f"{fmean(o.preemptions for o in own):,.0f}",
            f"{1e3 * fmean(o.ttft_p90_s for o in own):,.0f}",
            f"{1e3 * fmean(o.tpot_p90_s for o in own):,.1f}",
        )

    header = (
        "arm",
        "offline tokens/s",
        "attainment",
        "hit rate",
        "finished",
        "preemptions",
        "P90 TTFT ms",
        "P90 TPOT ms",
    )
    return Table(
        title=f"{study.name}, seeds: {len(seeds)}",
        header=header,
        rows=tuple(row(arm) for arm in study.arms),
    )
