"""How a run of Echo's benchmark is simulated: workload, arms, outcome; claims are `echo.py`'s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.ablation import AT_ONCE, PROMPTS_ALONE, interpreted, runs_apart, without
from benchmarks.papers.paper import Options, kept, read_rows
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.ids import RequestClass, RequestId
from weir_engine.kv.eviction import LruEviction
from weir_engine.kv.manager import KvManager
from weir_engine.presets import SEATS
from weir_engine.sim.adaptive_prefill import AdaptivePrefill, AdaptiveSettings
from weir_engine.sim.baselines import GATEWAYS, AimdSettings, AimdWindow, StockScheduler
from weir_engine.sim.loop import Feeder, Planner, Window
from weir_engine.sim.preset_run import preset_planner
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile
from weir_engine.sim.records import RequestRecord, SimResult
from weir_engine.sim.replica import Replica
from weir_engine.sim.threshold import ForecastThreshold, ThresholdSettings
from weir_engine.sim.workload import RequestSpec, Segment, online_from_rows

TTFT_S, TPOT_S, ATTAINMENT = 1.0, 0.05, 0.9
SLOS = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=TTFT_S),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=TPOT_S),
)
DOCUMENTS, QUESTIONS = 105, 1951
_DAY_S = 86_400.0
_BLOCK_TOKENS = 64
_CHARS_A_TOKEN = 4
_MOST_TOKENS = 40_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """One seed of one study; ``rate_s`` is the mean online rate, ``window_s`` the squeezed day."""

    profile: str
    offline: str
    data: Path
    rate_s: float
    window_s: float
    seed: int


ARMS = (
    "BS",
    "BS+E",
    "BS+E+S",
    "Echo",
    "BS sorted",
    "BS+E sorted",
    "aimd",
    "adaptive",
    "weir",
    PROMPTS_ALONE,
    AT_ONCE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One profile, one offline set."""

    profile: str
    offline: str
    rate_s: float
    seeds: int = 3

    @property
    def name(self) -> str:
        """Offline set and profile."""
        return f"{self.offline}@{self.profile}"

    @property
    def arms(self) -> tuple[str, ...]:
        """Those that make sense.

        Where nothing is shared, sorting changes nothing; few long prompts leave slots free, so
        there is hardly anything to gather.
        """
        absent = (AT_ONCE,) if self.offline == "loogle" else ("BS sorted", "BS+E sorted")
        return tuple(arm for arm in ARMS if arm not in absent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What an arm came to: offline tokens/s served until the set or the day ended."""

    offline_s: float
    attainment: float
    hit_rate: float
    finished: int
    preemptions: int
    ttft_p90_s: float
    tpot_p90_s: float


def online_of(setup: Setup) -> tuple[RequestSpec, ...]:
    """A production day squeezed into the window, thinned to the rate, with ShareGPT lengths."""
    day = read_rows(setup.data / "servegen/m_large_day1_4rps.csv.gz", ("arrival_s",))
    lengths = _sharegpt(setup)
    rng = np.random.default_rng((setup.seed, 30))
    count = round(setup.rate_s * setup.window_s)
    kept_rows = sorted(rng.choice(len(day), size=count, replace=False).tolist())
    drawn = rng.choice(len(lengths), size=count).tolist()
    scale = setup.window_s / _DAY_S
    return online_from_rows(
        [
            (day[i][0] * scale, max(int(lengths[j][0]), 1), max(int(lengths[j][1]), 1))
            for i, j in zip(kept_rows, drawn, strict=True)
        ]
    )


def offline_of(setup: Setup) -> tuple[RequestSpec, ...]:
    """The offline set, shuffled, all there at the start."""
    rng = np.random.default_rng((setup.seed, 31))
    return _loogle(setup, rng) if setup.offline == "loogle" else _plain(setup, rng)


def _sharegpt(setup: Setup) -> list[tuple[float, ...]]:
    path = setup.data / "lengths/sharegpt_predicted.csv.gz"
    return read_rows(path, ("input_tokens", "output_tokens"))


def _plain(setup: Setup, rng: np.random.Generator) -> tuple[RequestSpec, ...]:
    lengths = _sharegpt(setup)
    chosen = rng.choice(len(lengths), size=len(lengths) // 2, replace=False).tolist()
    return tuple(
        _offline(
            f"off-{i}",
            (Segment(key=f"off-{i}", tokens=max(int(lengths[i][0]), 1)),),
            int(lengths[i][1]),
        )
        for i in chosen
    )


def _loogle(setup: Setup, rng: np.random.Generator) -> tuple[RequestSpec, ...]:
    """Documents and answers drawn from the published lengths, spread by a fifth."""
    rows = read_rows(
        setup.data / "lengths/loogle_documents.csv.gz",
        ("document_chars", "questions", "mean_answer_chars"),
    )
    asked = [row for row in rows if row[1] > 1]
    documents = []
    for d in range(DOCUMENTS):
        chars, _, answer = asked[int(rng.integers(len(asked)))]
        stretch = float(np.exp(0.2 * rng.standard_normal()))
        tokens = min(int(chars * stretch / _CHARS_A_TOKEN), _MOST_TOKENS - 1000)
        documents.append((f"document-{d}", tokens, answer / _CHARS_A_TOKEN))
    made = []
    for q in range(QUESTIONS):
        key, tokens, answer = documents[q % DOCUMENTS]
        question = int(rng.integers(15, 60))
        output = max(1, round(answer * float(np.exp(0.4 * rng.standard_normal()))))
        segments = (Segment(key=key, tokens=tokens), Segment(key=f"off-{q}", tokens=question))
        made.append(_offline(f"off-{q}", segments, output))
    return tuple(made[int(i)] for i in rng.permutation(len(made)))


def _offline(name: str, segments: tuple[Segment, ...], output: int) -> RequestSpec:
    return RequestSpec(
        id=RequestId(name),
        klass=RequestClass.OFFLINE,
        arrival_s=0.0,
        segments=segments,
        output_tokens=max(output, 1),
    )


# -- arms -------------------------------------------------------------------------------------

Factory = Callable[[EngineShape, KvManager], Planner]
_PRESET_OF = {
    "BS+E": "echo-estimator",
    "BS+E+S": "echo-selection",
    "Echo": "echo",
    "weir": "weir",
    PROMPTS_ALONE: "weir",
    AT_ONCE: "weir",
}
_CHUNK = 2048
_MANAGED = ("Echo", "weir", PROMPTS_ALONE, AT_ONCE)
# Tokens a step, for adaptive the least; the better one counts. The others end a step by a budget.
_CHUNKS = {
    "BS": (256, 512),
    "BS sorted": (128, 256),
    "aimd": (256, 512),
    "adaptive": (64, 256),
}


def simulate(setup: Setup, arm: str, chunk: int, gateway: AimdSettings = GATEWAYS[0]) -> Outcome:
    """One run of one arm; ``gateway`` is AIMD's."""
    with without(arm):
        return _simulate(setup, arm, chunk, gateway)


def _simulate(setup: Setup, arm: str, chunk: int, gateway: AimdSettings) -> Outcome:
    profile = load_profile(setup.profile)
    shape = profile.engine_shape(
        max_batched_tokens=_CHUNK if arm == "adaptive" else chunk,
        max_seqs=128,
        max_model_len_tokens=_MOST_TOKENS,
        block_size_tokens=_BLOCK_TOKENS,
    )
    replica = Replica(
        cost=ProfileCost(profile=profile),
        shape=shape,
        slos=SLOS,
        policy=Policy(offline_kv_blocks=shape.total_blocks, offline_seq_slots=shape.max_seqs),
        seed=setup.seed,
        eviction=SEATS[_PRESET_OF[arm]].eviction if arm in _PRESET_OF else LruEviction(),
    )
    specs = offline_of(setup)
    if arm.endswith("sorted"):  # as if someone had sorted the file by document
        specs = tuple(sorted(specs, key=lambda spec: spec.segments[0].key))
    caches: list[KvManager] = []
    make = _planner(replica, arm, chunk)

    def seen(engine: EngineShape, kv: KvManager) -> Planner:
        caches.append(kv)
        return make(engine, kv)

    offline: Feeder = Window(specs, size=len(specs))
    if arm == "aimd":
        offline = AimdWindow(specs, slos=SLOS, settings=gateway)
    result = replica.simulate(
        online=online_of(setup), offline=offline, until_s=setup.window_s, planner=seen
    )
    return _outcome(setup, result, caches[0])


def _planner(replica: Replica, arm: str, chunk: int) -> Factory:
    if arm in {"BS", "BS sorted", "aimd"}:
        return lambda shape, kv: StockScheduler(shape, kv, step_tokens=chunk, fixed=True)
    if arm == "adaptive":
        return lambda shape, kv: AdaptivePrefill(
            shape, kv, slos=SLOS, settings=AdaptiveSettings(least=chunk, most=_CHUNK)
        )
    preset = _PRESET_OF.get(arm, "echo-estimator")
    make = preset_planner(replica, preset, tpot_from_arrival=True)  # as it is judged here
    if arm in _MANAGED:
        return ForecastThreshold.over(make, replica.policy, ThresholdSettings())
    return make


def _outcome(setup: Setup, result: SimResult, kv: KvManager) -> Outcome:
    steps = [step for step in result.steps if step.offline_served_tokens]
    ended_s = steps[-1].ended_s if steps else setup.window_s
    until_s = setup.window_s - 20
    arrived = len([spec for spec in online_of(setup) if spec.arrival_s < until_s])
    ended, answering = (
        [r for r in requests if r.tokens_s and r.arrival_s < until_s]
        for requests in (result.online, result.unfinished)
    )
    early = [*ended, *answering]
    held = sum(_held(r) for r in ended) + sum(_held_so_far(r, result.ended_s) for r in answering)
    counts = kv.hit_counts(RequestClass.OFFLINE)
    tpots = [tpot_s for r in early if (tpot_s := r.tpot_s) is not None]
    return Outcome(
        offline_s=sum(step.offline_served_tokens for step in steps) / max(ended_s, 1.0),
        attainment=held / max(arrived, 1),
        hit_rate=counts.hit_tokens / max(counts.asked_tokens, 1),
        finished=result.offline_finished,
        preemptions=result.preemptions,
        ttft_p90_s=float(np.percentile([r.ttft_s for r in early], 90)) if early else 0.0,
        tpot_p90_s=float(np.percentile(tpots, 90)) if tpots else 0.0,
    )


def _held(request: RequestRecord) -> bool:
    """Whether each token i came by arrival + TTFT + i * TPOT (Echo §5.1)."""
    return all(token_s <= _due_s(request, i) for i, token_s in enumerate(request.tokens_s))


def _held_so_far(request: RequestRecord, ended_s: float) -> bool:
    """The same of one that still answers at the end: its next token is not overdue either.

    Left out, it would count as missed, and an arm that answers as slowly as it may has more such.
    """
    return _held(request) and _due_s(request, len(request.tokens_s)) >= ended_s


def _due_s(request: RequestRecord, token: int) -> float:
    return request.arrival_s + TTFT_S + token * TPOT_S


def run_arm(cell: tuple[Options, Study, Setup, str]) -> dict[str, Any] | None:
    """One arm for one seed at its best chunk, as JSON has it; None: not to be run, not kept."""
    options, study, setup, arm = cell

    def make() -> dict[str, Any]:
        if runs_apart(arm):
            return interpreted(simulate.__module__, setup, arm, _CHUNK)
        chunks = _CHUNKS.get(arm, (_CHUNK,))
        ways = product(chunks, GATEWAYS if arm == "aimd" else GATEWAYS[:1])
        return asdict(_best([simulate(setup, arm, chunk, gateway) for chunk, gateway in ways]))

    part = f"{study.name}-{setup.seed}-{arm.replace(' ', '-')}"
    outcome: dict[str, Any] | None = kept(options, "echo", part, make)
    return outcome


def _best(runs: list[Outcome]) -> Outcome:
    """The one that serves most among those that attain; else the nearest to attaining."""
    holding = [run for run in runs if run.attainment >= ATTAINMENT]
    if holding:
        return max(holding, key=lambda run: run.offline_s)
    return max(runs, key=lambda run: run.attainment)
