"""What a simulation shows: latency statistics, tokens a second, and how much a bound allows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.sim.records import RequestRecord, SimResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Online latencies of a run, in seconds, one entry a request (TTFT, TPOT) or token (TBT)."""

    ttft_s: tuple[float, ...]
    tbt_s: tuple[float, ...]
    tpot_s: tuple[float, ...]

    @classmethod
    def of(cls, requests: Iterable[RequestRecord]) -> Self:
        """Those of some requests; one without a token has none."""
        answered = [request for request in requests if request.tokens_s]
        tpots = [request.tpot_s for request in answered]
        return cls(
            ttft_s=tuple(request.ttft_s for request in answered),
            tbt_s=tuple(tbt_s for request in answered for tbt_s in request.tbts_s),
            tpot_s=tuple(tpot_s for tpot_s in tpots if tpot_s is not None),
        )

    @classmethod
    def so_far(cls, results: Iterable[SimResult]) -> Self:
        """Those of all online requests of some replicas, whether they have ended or not.

        One without a first token has its wait so far as its TTFT, the least that it will be: left
        out, a fleet that answers one request in ten would show that one's latency.
        """
        found = list(results)
        begun = cls.of(r for result in found for r in (*result.online, *result.unfinished))
        waits_s = [
            result.ended_s - request.arrival_s
            for result in found
            for request in result.unfinished
            if not request.tokens_s
        ]
        return cls(ttft_s=(*begun.ttft_s, *waits_s), tbt_s=begun.tbt_s, tpot_s=begun.tpot_s)

    def statistic(self, metric: Metric, statistic: str) -> float:
        """The mean or a percentile (``"mean"``, ``"p50"`` to ``"p99"``) of one metric.

        Raises:
            ConfigError: no request was measured.
        """
        values = {Metric.TTFT: self.ttft_s, Metric.TBT: self.tbt_s, Metric.TPOT: self.tpot_s}
        return _statistic(values[metric], metric, statistic)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One run between two times.

    ``served_tokens_s`` and ``computed_tokens_s`` are offline tokens a second, with and without
    prefix hits; ``busy`` the share of time in steps; ``online_share`` u, the share that online
    work takes without the fixed cost of steps; ``step_s`` the mean step, ``error`` the mean
    absolute relative error of the predicted durations.
    """

    latencies: Latencies
    served_tokens_s: float
    computed_tokens_s: float
    busy: float
    online_share: float
    step_s: float
    error: float
    preemptions: int
    online_hit_rate: float


def summarise(result: SimResult, *, from_s: float, to_s: float) -> Summary:
    """Statistics of the online requests that arrived, and of the steps that ended, in between."""
    window_s = to_s - from_s
    steps = [step for step in result.steps if from_s < step.ended_s <= to_s]
    online = [r for r in result.online if from_s <= r.arrival_s < to_s and r.tokens_s]
    seconds = [step.ended_s - step.started_s for step in steps]
    errors = [
        abs(step.predicted_s / duration_s - 1)
        for step, duration_s in zip(steps, seconds, strict=True)
    ]
    prompts = sum(request.prompt_tokens for request in online)
    return Summary(
        latencies=Latencies.of(online),
        served_tokens_s=sum(step.offline_served_tokens for step in steps) / window_s,
        computed_tokens_s=sum(step.offline_computed_tokens for step in steps) / window_s,
        busy=sum(seconds) / window_s,
        online_share=sum(step.online_s for step in steps) / window_s,
        step_s=_mean(seconds),
        error=_mean(errors),
        preemptions=result.preemptions,
        online_hit_rate=sum(r.hit_tokens for r in online) / prompts if prompts else 0.0,
    )


def attained(latencies: Latencies, slos: Sequence[Slo]) -> float:
    """The worst ratio of measured to threshold over the objectives; at most 1 means all held."""
    return max(latencies.statistic(slo.metric, slo.statistic) / slo.threshold_s for slo in slos)


def bound(*, fixed_s: float, step_limit_s: float | None, online_share: float) -> float:
    """The share of the ceiling that any policy can reach: 1 - c0/S - u, none below 0.

    ``step_limit_s`` S is None where no objective bounds single steps; then c0/S is 0.

    Source: design §3, "How a budget becomes a step".
    """
    fixed = 0.0 if step_limit_s is None else fixed_s / step_limit_s
    return max(0.0, 1 - fixed - online_share)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _statistic(values: Sequence[float], metric: Metric, statistic: str) -> float:
    if not values:
        raise ConfigError(
            f"no {metric.value} was measured: simulate longer, raise the rate, or have answers of "
            "two tokens or more (one has only a ttft)"
        )
    if statistic == "mean":
        return float(np.mean(values))
    return float(np.percentile(values, int(statistic[1:])))
