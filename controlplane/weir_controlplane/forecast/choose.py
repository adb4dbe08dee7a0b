"""Scores the methods on the pod's own recent past and forecasts with the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weir_controlplane.forecast.methods import History, Method

HORIZON_S = 120.0  # a forecast is renewed every second; it must hold while a control plane is gone
SCORED_S = 3600.0
COVERAGE_TARGET = 0.95
MIN_SCORED = 5
COMPARABLE = 0.9  # of the spans of the method that has most


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How a method would have done. Shares in [0, 1]; ``spans`` is what they are measured on.

    ``coverage``: spans whose peak demand stayed within the forecast. ``waste``: forecast blocks
    that the peak left unused, of the pod's total, on average.
    """

    method: str
    coverage: float
    waste: float
    spans: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Online KV blocks to keep room for in the next `HORIZON_S`, and how the methods scored."""

    method: str
    online_kv_blocks: int
    scores: tuple[Score, ...]


def score(method: Method, history: History, at_s: float, *, total_blocks: int) -> Score | None:
    """The method's score over the hour before ``at_s``; None with fewer than `MIN_SCORED` spans.

    Walk-forward: each span of `HORIZON_S` is forecast from what came before it.
    """
    covered, waste, spans = 0, 0.0, 0
    for step in range(int(SCORED_S // HORIZON_S), 0, -1):
        start_s = at_s - step * HORIZON_S
        first, last = history.recent.between(start_s, start_s + HORIZON_S)
        if first == last:
            continue
        blocks = method.forecast_blocks(history, start_s)
        if blocks is None:
            continue
        peak = float(history.recent.max_blocks[first:last].max())
        spans += 1
        covered += peak <= blocks
        waste += max(0.0, min(blocks, total_blocks) - peak) / max(total_blocks, 1)
    if spans < MIN_SCORED:
        return None
    return Score(method=method.name, coverage=covered / spans, waste=waste / spans, spans=spans)


def score_all(
    methods: Sequence[Method], history: History, at_s: float, *, total_blocks: int
) -> tuple[Score, ...]:
    """The scores of the methods that have one, in the order of ``methods``."""
    scores = (score(method, history, at_s, total_blocks=total_blocks) for method in methods)
    return tuple(item for item in scores if item is not None)


def ranking(methods: Sequence[Method], scores: Sequence[Score]) -> list[Method]:
    """The methods, best first: coverage up to the target, then less waste, then given order.

    One that was measured on fewer spans may have been spared the hard ones: it comes later.
    """
    known = {item.method: item for item in scores}
    most = max((item.spans for item in scores), default=0)

    def rank(method: Method) -> tuple[int, float, float]:
        item = known.get(method.name)
        if item is None:
            return (2, 0.0, 0.0)
        fewer = int(item.spans < COMPARABLE * most)
        return (fewer, -min(item.coverage, COVERAGE_TARGET), item.waste)

    return sorted(methods, key=rank)


def forecast(
    methods: Sequence[Method],
    history: History,
    at_s: float,
    *,
    total_blocks: int,
    scores: Sequence[Score],
) -> Forecast | None:
    """The best method's forecast in [0, ``total_blocks``]; None when the past is too short."""
    for method in ranking(methods, scores):
        blocks = method.forecast_blocks(history, at_s)
        if blocks is not None:
            bounded = min(max(int(np.ceil(blocks)), 0), total_blocks)
            return Forecast(method=method.name, online_kv_blocks=bounded, scores=tuple(scores))
    return None
