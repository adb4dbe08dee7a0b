"""OmniServe's set-up: hardware, objectives, and the requests of one seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.papers.paper import read_rows
from weir_engine.config import Metric, Slo
from weir_engine.ids import RequestClass, RequestId
from weir_engine.sim.workload import RequestSpec, Segment, online_from_rows

BATCH = {"longbench": (8952, 136, 12_000), "dailymail": (1964, 397, 4_000)}
_SUBMITTED_S = 182.6 / 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """One seed of one cell. ``change_s``: the rate is drawn anew from 1 to 5 so often; 0: never.

    ``remote`` CPU hosts stand beside the GPU server, over ``network_bytes_s``. ``kv_tokens`` (None:
    all that fit) bounds the KV on the GPUs. The first ``ramp_s`` do not count.
    """

    profile: str
    data: Path
    rate_s: float
    window_s: float
    seed: int
    ttft_s: float = 3.0
    tpot_s: float = 0.25
    offline: str = "longbench"
    change_s: float = 0.0
    remote: int = 4
    network_bytes_s: float = 12.5e9
    ramp_s: float = 120.0
    kv_tokens: int | None = None


def online_of(setup: Setup) -> tuple[RequestSpec, ...]:
    """ShareGPT lengths; Poisson arrivals, at one rate or at one drawn anew every few seconds."""
    lengths = read_rows(
        setup.data / "lengths/sharegpt_predicted.csv.gz", ("input_tokens", "output_tokens")
    )
    rng = np.random.default_rng((setup.seed, 40))
    times: list[float] = []
    length_s = setup.change_s or setup.window_s
    for at in range(int(np.ceil(setup.window_s / length_s))):
        rate_s = float(rng.integers(1, 6)) / 3 * setup.rate_s if setup.change_s else setup.rate_s
        count = int(rng.poisson(rate_s * length_s))
        times += (at * length_s + rng.uniform(0, length_s, count)).tolist()
    drawn = rng.choice(len(lengths), size=len(times)).tolist()
    return online_from_rows(
        [
            (time_s, max(int(lengths[j][0]), 1), max(int(lengths[j][1]), 1))
            for time_s, j in zip(sorted(times), drawn, strict=True)
        ]
    )


def offline_of(setup: Setup) -> tuple[RequestSpec, ...]:
    """Batch requests by the published mean lengths, log-normal around them, nothing shared."""
    prompt, output, longest = BATCH[setup.offline]
    rng = np.random.default_rng((setup.seed, 41))
    count = int(rng.poisson(_SUBMITTED_S * setup.window_s))
    times = np.sort(rng.uniform(0, setup.window_s, count)).tolist()
    prompts = np.clip(prompt * np.exp(0.2 * rng.standard_normal(count) - 0.02), 64, longest)
    outputs = np.maximum(output * np.exp(0.4 * rng.standard_normal(count) - 0.08), 1)
    return tuple(
        RequestSpec(
            id=RequestId(f"off-{i}"),
            klass=RequestClass.OFFLINE,
            arrival_s=times[i],
            segments=(Segment(key=f"off-{i}", tokens=int(prompts[i])),),
            output_tokens=int(outputs[i]),
        )
        for i in range(count)
    )


def slos_of(setup: Setup) -> tuple[Slo, ...]:
    """TTFT and mean TPOT of each request."""
    return (
        Slo(metric=Metric.TTFT, statistic="p90", threshold_s=setup.ttft_s),
        Slo(metric=Metric.TPOT, statistic="p90", threshold_s=setup.tpot_s),
    )


def pace_of(setup: Setup) -> tuple[Slo, ...]:
    """What Weir is given: TPOT alone, which it then keeps from the first token on.

    With TTFT beside it a request that starts early may go slower, as Echo has it; here the mean of
    a request's gaps is judged, whenever it started.
    """
    return tuple(slo for slo in slos_of(setup) if slo.metric is Metric.TPOT)
