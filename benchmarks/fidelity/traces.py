"""The traces of the comparison: what is sent to the live engine, and the same for the simulator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from benchmarks.colocation.setup import (
    BLOCK_TOKENS,
    PRESSURE,
    SEQUENCES,
    TRACE,
    Workload,
)
from weir_cli.loadlab.measure import Window
from weir_cli.loadlab.workload import (
    OfflineOrder,
    OnlineRequest,
    offline_supply,
    online_requests,
)
from weir_engine.config import Metric, Slo
from weir_engine.ids import RequestClass, RequestId
from weir_engine.sim.workload import RequestSpec, Segment

WINDOW = Window(ramp_s=15.0, measure_s=60.0, tail_s=10.0)
SLO = Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.12)
OFFLINE_LINES = 40  # a simulated second takes fewer
HELD_LINES = 4 * SEQUENCES - 16  # the stand-in leases whole chunks of 60 within the agent's window


@dataclass(frozen=True, kw_only=True, slots=True)
class FidelityTrace:
    """One run: both loads and the seed; ``colocated`` False leaves the batch work out."""

    name: str
    workload: Workload
    seed: int
    colocated: bool = True

    def online(self) -> list[OnlineRequest]:
        """The online requests of the whole window, by due time."""
        return online_requests(self.workload.online, seed=self.seed, duration_s=WINDOW.total_s)


FITTED = FidelityTrace(name="fitted", workload=TRACE, seed=1)
"""Single questions, batch work over 40 documents: the profile is made from its steps."""

JUDGED = (
    # Conversations of four turns and 120 documents, beyond the cache.
    FidelityTrace(name="conversations", workload=PRESSURE, seed=2),
    # Other requests, fewer a second with longer answers.
    FidelityTrace(
        name="longer-answers",
        workload=replace(
            TRACE,
            online=replace(
                TRACE.online, rate_per_s=1.2, output=replace(TRACE.online.output, median=88)
            ),
        ),
        seed=3,
    ),
    FidelityTrace(name="online-only", workload=TRACE, seed=4, colocated=False),
)
TRACES = {trace.name: trace for trace in (FITTED, *JUDGED)}


def online_specs(trace: FidelityTrace) -> tuple[RequestSpec, ...]:
    """The online requests as the simulator takes them."""
    return tuple(
        RequestSpec(
            id=RequestId(request.name),
            klass=RequestClass.ONLINE,
            arrival_s=request.at_s,
            segments=segments(request.prompt),
            output_tokens=request.max_tokens,
        )
        for request in trace.online()
    )


def offline_specs(trace: FidelityTrace) -> Iterator[RequestSpec]:
    """The batch lines in the order in which the stand-in hands them out; none if online-only."""
    if not trace.colocated:
        return
    supply = offline_supply(trace.workload.offline, seed=trace.seed, order=OfflineOrder.PREFIX)
    lines = iter(supply, None)
    for number, line in enumerate(islice(lines, int(OFFLINE_LINES * WINDOW.total_s))):
        yield RequestSpec(
            id=RequestId(f"line-{number}"),
            klass=RequestClass.OFFLINE,
            arrival_s=0.0,
            segments=segments(line.prompt),
            output_tokens=line.max_tokens,
        )


def segments(prompt: str) -> tuple[Segment, ...]:
    """A prompt, a token a character, in pieces of a KV block: equal text is shared as in vLLM."""
    return tuple(
        Segment(key=hashlib.blake2b(piece.encode(), digest_size=8).hexdigest(), tokens=len(piece))
        for start in range(0, len(prompt), BLOCK_TOKENS)
        for piece in [prompt[start : start + BLOCK_TOKENS]]
    )
