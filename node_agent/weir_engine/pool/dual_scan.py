"""The dual scanner: batch requests from both ends of the density order, blended in memory.

Fills the offline-selection seat of the scheduler. The order comes from outside, as each request's
hint; whether a request fits is decided by the step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from weir_engine.errors import ConfigError
from weir_engine.ids import RequestId
from weir_engine.pool.density import LLAMA_8B_A100, partition_memory
from weir_engine.pool.placed_queues import PlacedQueues
from weir_engine.request import Request, RequestState


class Side(StrEnum):
    """The end of the density order that a request was taken from."""

    LEFT = "compute"
    RIGHT = "memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendHint:
    """What a request carries from the global tree.

    ``side``: its end; ``density``: its unit's compute density; ``held_tokens``: KV tokens that it
    holds on average while it runs, its prompt plus half the output it is expected to have.
    """

    side: Side
    density: float
    held_tokens: float


def hint_by_lengths(request: Request) -> BlendHint:
    """A hint from the request's own lengths, where no tree gave one: above or below 1, unshared."""
    expected = request.expected_output_tokens
    output = request.max_output_tokens if expected is None else expected
    density = LLAMA_8B_A100.density(request.prompt_tokens, output)
    return BlendHint(
        side=Side.LEFT if density >= 1.0 else Side.RIGHT,
        density=density,
        held_tokens=request.prompt_tokens + output / 2,
    )


_Waiting = tuple[Request, BlendHint]
_LEAST_RUNNING = 64


class DualScanOrder:
    """Two queues, one an end; the next request comes from the side that lacks memory.

    ``hint`` says where a request was taken from. Requests of one side go in the order of adding:
    that is the order of the tree. KV memory is split between the sides so that the blend has
    ``target_density``; the next request is of the side whose share is filled least.

    A request counts with the KV it holds on average, so that its share does not drift while it
    decodes. It counts from its admission to its end.

    Raises:
        ConfigError: a target that is not above 0.

    Source: BlendServe §3.4. Counting the average is ours: the paper speaks of memory, and a
    request of 16k output tokens holds little of it at first.
    """

    def __init__(self, *, target_density: float, hint: Callable[[Request], BlendHint]) -> None:
        if not target_density > 0:
            raise ConfigError(f"target_density is {target_density}: give more than 0")
        self._target = target_density
        self._waiting = PlacedQueues(Side, hint=hint, place=lambda known: known.side)
        self._running: list[_Waiting] = []
        self._most_running = _LEAST_RUNNING

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self, side: Side) -> int:
        """Requests of one side that wait."""
        return len(self._waiting.at(side))

    def set_target(self, density: float) -> None:
        """Blend to another density from now on."""
        self._target = density

    def add(self, request: Request) -> None:
        """A request waits, behind those of its side.

        Raises:
            DuplicateRequestError: its id waits already.
        """
        self._waiting.add(request)

    def remove(self, request_id: RequestId) -> None:
        """It waits no more: it ended before it ran.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        self._waiting.leave(request_id)

    def taken(self, request_id: RequestId) -> None:
        """It was admitted, and holds its side's memory until it ends.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        entry = self._waiting.leave(request_id)
        if len(self._running) >= self._most_running:  # those that ended leave now and then
            self._running = [
                other for other in self._running if other[0].state is not RequestState.FINISHED
            ]
            self._most_running = 2 * len(self._running) + _LEAST_RUNNING
        self._running.append(entry)

    def candidates(self, limit: int, now_s: float) -> Sequence[Request]:  # noqa: ARG002
        """The first ``limit`` in the order to try; nothing changes."""
        held = self.held_tokens()
        queues = {side: iter(self._waiting.at(side)) for side in Side}
        heads = {side: next(queue, None) for side, queue in queues.items()}
        found: list[Request] = []
        part, between = 0.0, (-1.0, -1.0)  # units are long: the densities seldom change
        while len(found) < limit:
            left, right = heads[Side.LEFT], heads[Side.RIGHT]
            if left is None or right is None:
                rest = Side.RIGHT if left is None else Side.LEFT
                found += _rest(heads[rest], queues[rest], limit - len(found))
                break
            if between != (left[1].density, right[1].density):
                between = (left[1].density, right[1].density)
                part = self._left_part(*between)
            side = _lacking(held, part)
            request, hint = left if side is Side.LEFT else right
            found.append(request)
            held[side] += hint.held_tokens
            heads[side] = next(queues[side], None)
        return found

    def held_tokens(self) -> dict[Side, float]:
        """KV tokens that each side's running requests hold on average."""
        held = dict.fromkeys(Side, 0.0)
        for request, hint in self._running:
            if request.state is not RequestState.FINISHED:
                held[hint.side] += hint.held_tokens
        return held

    def _left_part(self, left: float, right: float) -> float:
        """The part of all memory that is the left side's."""
        return partition_memory(
            1.0, left_density=left, right_density=right, target_density=self._target
        ).left


def _lacking(held: dict[Side, float], left_part: float) -> Side:
    """The side whose share of what is held is below its part."""
    total = held[Side.LEFT] + held[Side.RIGHT]
    if total == 0:
        return Side.LEFT if left_part >= 0.5 else Side.RIGHT
    return Side.LEFT if held[Side.LEFT] < left_part * total else Side.RIGHT


def _rest(head: _Waiting | None, queue: Iterator[_Waiting], upto: int) -> list[Request]:
    if head is None:
        return []
    return [head[0], *(request for (request, _), _ in zip(queue, range(upto - 1), strict=False))]
