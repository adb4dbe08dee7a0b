"""What BROS serves: ShareGPT prompts by a Poisson process online, sets of documents offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.papers.paper import read_rows
from weir_engine.ids import RequestClass, RequestId
from weir_engine.sim.records import RequestRecord
from weir_engine.sim.workload import RequestSpec, Segment, online_from_rows, poisson_times

LONGEST_TOKENS = 2048  # OPT's context
_PROMPTS, _OUTPUTS = (512, 1024), (32, 128)


def online_of(data: Path, *, rate_s: float, seconds: float, seed: int) -> tuple[RequestSpec, ...]:
    """Online requests: lengths of ShareGPT, cut to OPT's context, arrivals by a Poisson process."""
    rows = read_rows(data / "lengths/sharegpt_predicted.csv.gz", ("input_tokens", "output_tokens"))
    rng = np.random.default_rng((seed, 40))
    times = poisson_times(rng, rate_s=rate_s, duration_s=seconds)
    drawn = rng.choice(len(rows), size=len(times)).tolist()
    made = []
    for time_s, at in zip(times, drawn, strict=True):
        prompt = min(max(int(rows[at][0]), 1), LONGEST_TOKENS // 2)
        output = min(max(int(rows[at][1]), 1), LONGEST_TOKENS - prompt)
        made.append((time_s, prompt, output))
    return online_from_rows(made)


class Sets:
    """Offline sets of ``size`` requests, each submitted whole when the last one has ended."""

    def __init__(self, *, size: int, seed: int) -> None:
        self._size = size
        self._rest = _documents(np.random.default_rng((seed, 41)))

    def take(self, *, now_s: float, unfinished: int) -> list[RequestSpec]:  # noqa: ARG002
        """The next set, once nothing is unfinished."""
        if unfinished:
            return []
        return [next(self._rest) for _ in range(self._size)]

    def online_ended(self, record: RequestRecord) -> None:
        """Makes no difference."""


def documents(count: int, seed: int) -> tuple[RequestSpec, ...]:
    """As many offline requests, in the order in which the sets have them."""
    rest = _documents(np.random.default_rng((seed, 41)))
    return tuple(next(rest) for _ in range(count))


def _documents(rng: np.random.Generator) -> Iterator[RequestSpec]:
    """Prompts U(512, 1024), outputs U(32, 128), nothing shared (BROS §7.1)."""
    at = 0
    while True:
        name = RequestId(f"off-{at}")
        yield RequestSpec(
            id=name,
            klass=RequestClass.OFFLINE,
            arrival_s=0.0,
            segments=(Segment(key=name, tokens=int(rng.integers(*_PROMPTS, endpoint=True))),),
            output_tokens=int(rng.integers(*_OUTPUTS, endpoint=True)),
        )
        at += 1
