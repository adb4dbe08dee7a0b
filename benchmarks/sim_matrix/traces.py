"""The traces of the matrix: a machine each, its online load and its batch work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weir_engine.config import EngineShape, Policy
from weir_engine.sim.cost import CPU_2_CORES, GPU_LIKE, CostModel
from weir_engine.sim.replica import SMALL_CPU
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    RequestSpec,
    Turns,
    bursty_times,
    conversations,
    document_questions,
    online_requests,
    poisson_times,
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One online load and one offline set on one machine."""

    cost: CostModel
    shape: EngineShape
    rate_s: float
    prompt: Lengths
    output: Lengths
    documents: Documents
    burst: float | None = None
    turns: Turns | None = None


_SHORT = Lengths(median=100, sigma=1.0, low=8, high=2000)
_DOCUMENTS = Documents(
    count=40,
    questions=15,
    document=Lengths(median=1500, sigma=0.1, low=1000, high=2200),
    question=Lengths(median=40, sigma=0.3, low=10, high=120),
    output=Lengths(median=24, sigma=0.4, low=4, high=96),
)
_BIG = EngineShape(
    block_size_tokens=16,
    total_blocks=16_000,
    max_batched_tokens=8192,
    max_seqs=256,
    max_model_len_tokens=8192,
)
TRACES = {
    "steady": Trace(
        cost=CPU_2_CORES,
        shape=SMALL_CPU,
        rate_s=1.5,
        prompt=_SHORT,
        output=Lengths(median=28, sigma=0.6, low=4, high=128),
        documents=_DOCUMENTS,
    ),
    "bursty": Trace(
        cost=CPU_2_CORES,
        shape=SMALL_CPU,
        rate_s=1.2,
        prompt=replace(_SHORT, median=60),
        output=Lengths(median=40, sigma=0.6, low=4, high=200),
        documents=replace(
            _DOCUMENTS, questions=6, document=Lengths(median=800, sigma=0.4, low=200, high=2000)
        ),
        burst=5.0,
    ),
    "long": Trace(
        cost=CPU_2_CORES,
        shape=SMALL_CPU,
        rate_s=0.6,
        prompt=replace(_SHORT, median=50),
        output=Lengths(median=200, sigma=0.5, low=50, high=600),
        documents=replace(_DOCUMENTS, output=Lengths(median=120, sigma=0.4, low=20, high=400)),
    ),
    "pressure": Trace(
        cost=CPU_2_CORES,
        shape=SMALL_CPU,
        rate_s=0.2,
        prompt=_SHORT,
        output=_SHORT,
        documents=replace(_DOCUMENTS, questions=8),
        turns=Turns(
            count=8,
            gap_s=15.0,
            message=Lengths(median=80, sigma=0.7, low=10, high=400),
            output=Lengths(median=30, sigma=0.5, low=4, high=100),
            longest_tokens=3000,
        ),
    ),
    "gpu": Trace(
        cost=GPU_LIKE,
        shape=_BIG,
        rate_s=3.0,
        prompt=Lengths(median=500, sigma=1.0, low=20, high=4000),
        output=Lengths(median=150, sigma=0.6, low=10, high=600),
        documents=replace(
            _DOCUMENTS,
            count=100,
            questions=4,
            document=Lengths(median=3000, sigma=0.3, low=500, high=6000),
            question=Lengths(median=200, sigma=0.5, low=20, high=1000),
            output=Lengths(median=100, sigma=0.5, low=10, high=400),
        ),
    ),
}


def online_of(trace: Trace, seconds: float, seed: int) -> tuple[RequestSpec, ...]:
    """The online arrivals of a trace."""
    rng = np.random.default_rng((seed, 10))
    if trace.burst is None:
        times = poisson_times(rng, rate_s=trace.rate_s, duration_s=seconds)
    else:
        times = bursty_times(
            rng, rate_s=trace.rate_s, duration_s=seconds, burst=trace.burst, period_s=30.0
        )
    if trace.turns is not None:
        return conversations(rng, times, turns=trace.turns)
    return online_requests(rng, times, prompt=trace.prompt, output=trace.output)


def offline_of(trace: Trace, seconds: float, seed: int) -> tuple[RequestSpec, ...]:
    """More offline requests than the run can finish, as the control plane sends them: by prefix."""
    rng = np.random.default_rng((seed, 11))
    per_s = 60 if trace.shape is _BIG else 12
    count = max(trace.documents.count, int(per_s * seconds / trace.documents.questions))
    specs = document_questions(rng, replace(trace.documents, count=count))
    return tuple(sorted(specs, key=lambda spec: (spec.group or "", spec.id)))


def policy_of(trace: Trace) -> Policy:
    """A policy that lets offline work have nine tenths of the blocks and half the slots."""
    shape = trace.shape
    return Policy(
        offline_kv_blocks=shape.total_blocks * 9 // 10, offline_seq_slots=shape.max_seqs // 2
    )
