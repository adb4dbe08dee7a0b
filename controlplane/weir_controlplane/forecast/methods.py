"""The forecasting methods: each turns a pod's past into the demand to keep room for.

A method sees only buckets that start before the moment it forecasts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from weir_controlplane.forecast.demand import Demand, Floats

DAY_S = 86_400
HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """What is kept of one pod: 10 s buckets of the last hours, 10 min buckets of the last days."""

    recent: Demand
    days: Demand


class Method(Protocol):
    """A way to forecast."""

    @property
    def name(self) -> str:
        """As it is written in policies and metrics."""
        ...

    def forecast_blocks(self, history: History, at_s: float) -> float | None:
        """Online KV blocks to keep room for after ``at_s``; None when the past is too short."""
        ...


def _moments(demand: Demand, first: int, last: int) -> tuple[float, float] | None:
    count = float(demand.samples[first:last].sum())
    if count <= 0:
        return None
    mean = float(demand.sum_blocks[first:last].sum()) / count
    square = float(demand.sum_sq_blocks[first:last].sum()) / count
    return mean, float(np.sqrt(max(square - mean * mean, 0.0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanSigma:
    """Mean plus ``sigmas`` standard deviations of the samples of the last ``window_s`` seconds.

    Source: Echo §5.3, mean + 2 sigma over the past hour.
    """

    window_s: float = HOUR_S
    sigmas: float = 2.0
    min_buckets: int = 12
    name: str = "mean_sigma"

    def forecast_blocks(self, history: History, at_s: float) -> float | None:
        """Online KV blocks; None with fewer than ``min_buckets`` buckets in the window."""
        first, last = history.recent.between(at_s - self.window_s, at_s)
        if last - first < self.min_buckets:
            return None
        moments = _moments(history.recent, first, last)
        return None if moments is None else moments[0] + self.sigmas * moments[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantile:
    """A quantile of the buckets' maxima over the last ``window_s`` seconds.

    Makes no assumption on the distribution: a bursty pod is not normal, as Echo's 95% would need.
    """

    window_s: float = HOUR_S
    quantile: float = 0.98
    min_buckets: int = 12
    name: str = "quantile"

    def forecast_blocks(self, history: History, at_s: float) -> float | None:
        """Online KV blocks; None with fewer than ``min_buckets`` buckets in the window."""
        first, last = history.recent.between(at_s - self.window_s, at_s)
        if last - first < self.min_buckets:
            return None
        return float(_upper_quantile(history.recent.max_blocks[first:last], self.quantile))


def _upper_quantile(values: Floats, quantile: float) -> float:
    rank = min(len(values) - 1, int(np.ceil(quantile * len(values))) - 1)
    return float(np.partition(values, rank)[rank])


@dataclass(frozen=True, kw_only=True, slots=True)
class Seasonal:
    """Mean plus ``sigmas`` deviations at this time of day on earlier days, scaled to today.

    The coming hour on each earlier day; scaled by the last hour's mean over the same hour's mean
    then, within [0.5, 2], so that a busier week does not read like last week.
    """

    window_s: float = HOUR_S
    sigmas: float = 2.0
    min_days: int = 1
    name: str = "seasonal"

    def forecast_blocks(self, history: History, at_s: float) -> float | None:
        """Online KV blocks; None without ``min_days`` earlier days that cover this hour."""
        days = history.days
        ahead, before, covered = np.zeros(3), np.zeros(3), 0
        day = 1
        while len(days) and at_s - day * DAY_S + self.window_s > float(days.start_s[0]):
            then_s = at_s - day * DAY_S
            coming = self._sums(days, then_s, then_s + self.window_s)
            covered += coming[0] > 0
            ahead += coming
            before += self._sums(days, then_s - self.window_s, then_s)
            day += 1
        if covered < self.min_days:
            return None
        mean = ahead[1] / ahead[0]
        sigma = np.sqrt(max(ahead[2] / ahead[0] - mean * mean, 0.0))
        return float((mean + self.sigmas * sigma) * self._scale(history, at_s, before))

    def _scale(self, history: History, at_s: float, before: Floats) -> float:
        now = self._sums(history.recent, at_s - self.window_s, at_s)
        if now[0] == 0 or before[0] == 0 or before[1] <= 0:
            return 1.0
        return float(np.clip((now[1] / now[0]) / (before[1] / before[0]), 0.5, 2.0))

    @staticmethod
    def _sums(demand: Demand, from_s: float, to_s: float) -> Floats:
        first, last = demand.between(from_s, to_s)
        return np.array(
            [
                demand.samples[first:last].sum(),
                demand.sum_blocks[first:last].sum(),
                demand.sum_sq_blocks[first:last].sum(),
            ]
        )


def default_methods(*, sigmas: float = 2.0, window_s: float = HOUR_S) -> tuple[Method, ...]:
    """The three methods of design.md §4; the first is used until the others have proved better."""
    return (
        MeanSigma(window_s=window_s, sigmas=sigmas),
        Quantile(window_s=window_s),
        Seasonal(window_s=window_s, sigmas=sigmas),
    )
