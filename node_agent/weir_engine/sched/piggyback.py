"""How many results of CPU attention a step takes through the dense modules of each model layer."""

from collections import Counter
from typing import NamedTuple, Protocol, runtime_checkable

from weir_engine.sched.cpu_lane import CpuLaneView

HANDLING_S = 1.5e-6
"""A result's queue, residual store and scattered load on the GPU: (75 + 500) us for 400 of them.

Source: OmniServe §5.3, Fig. 19(a).
"""
_MOST_SHARE = 0.25


@runtime_checkable
class DenseModel(Protocol):
    """A latency model that knows its dense modules apart from the rest of a step."""

    def dense_s(self, tokens: int) -> float:
        """Seconds of the dense modules of all layers for that many tokens."""
        ...


class Piggyback(NamedTuple):
    """Results taken by layer, ``(layers,)``, and the seconds that they add to the step."""

    counts: tuple[int, ...]
    seconds: float


class PiggybackControl:
    """Layer-wise batching: each layer's dense modules take the step's tokens and some results.

    A request that is taken at one layer goes on to the CPU for the next, so a token takes as many
    steps as the model has layers.

    Source: OmniServe §3.2.2, §3.3.6. The reserve ("piggyback overhead", whose formula is lost) is
    read as what all waiting results would take; ours is that it never exceeds a quarter of the
    step, or offline prefill would starve behind a full lane.
    """

    def __init__(self, lane: CpuLaneView, model: DenseModel) -> None:
        self._lane = lane
        self._model = model

    def reserve_s(self, tokens: int, limit_s: float) -> float:
        """Seconds to keep free in a step of ``tokens`` for results that wait now; 0 for none."""
        ready = self._lane.ready
        dense_s = self._model.dense_s(tokens)
        each = Counter(count for count in ready if count)
        all_s = sum(
            layers * self._layer_s(tokens, count, dense_s, len(ready))
            for count, layers in each.items()
        )
        return min(all_s, _MOST_SHARE * limit_s)

    def admit(
        self, tokens: int, room_s: float, leaving: int = 0, *, must_move: bool = False
    ) -> Piggyback:
        """Results to take beside ``tokens``, from the lowest layer up until ``room_s`` is full.

        ``leaving`` requests go back to the GPU and may be among those at the lowest layer.
        ``must_move``: one is taken whatever the room, or none ever might be.
        """
        ready = list(self._lane.ready)
        ready[0] = max(ready[0] - leaving, 0)
        counts = [0] * len(ready)
        dense_s = self._model.dense_s(tokens)
        spent_s = 0.0
        for layer, waiting in enumerate(ready):
            if not waiting:
                continue
            taken = self._fitting(tokens, waiting, dense_s, len(ready), room_s - spent_s)
            if must_move and not any(counts):
                taken = max(taken, 1)
            if taken:
                counts[layer] = taken
                spent_s += self._layer_s(tokens, taken, dense_s, len(ready))
            if taken < waiting:
                break  # the objective binds; those above wait for the next step
        return Piggyback(tuple(counts) if any(counts) else (), spent_s)

    def _fitting(
        self, tokens: int, waiting: int, dense_s: float, layers: int, room_s: float
    ) -> int:
        if self._layer_s(tokens, waiting, dense_s, layers) <= room_s:
            return waiting
        low, high = 0, waiting
        while high - low > 1:
            middle = (low + high) // 2
            if self._layer_s(tokens, middle, dense_s, layers) <= room_s:
                low = middle
            else:
                high = middle
        return low

    def _layer_s(self, tokens: int, count: int, dense_s: float, layers: int) -> float:
        """What ``count`` more tokens add to one layer; measured tiles can make that less than 0."""
        more_s = (self._model.dense_s(tokens + count) - dense_s) / layers
        return max(more_s, 0.0) + count * HANDLING_S
