"""A batch at the pace of its two lanes: memory and compute are both busy in every step.

BlendServe scans a density order from both ends and shares memory by what requests hold on average.
Long outputs that begin together read little at first and much later, so one lane or the other
idles. This order looks ahead instead: at what running outputs will have grown to, and at the work
that is left for each lane. It takes from three places of the same density order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from weir_engine.errors import ConfigError
from weir_engine.ids import RequestId
from weir_engine.pool.blend_work import Ahead, BlendWork, MemoryLane, Scan, fitting_steps
from weir_engine.pool.placed_queues import PlacedQueues
from weir_engine.request import Request, RequestState


@dataclass(kw_only=True, slots=True)
class _Running:
    """What runs. ``growing``: remaining steps and context of the memory side's requests.

    ``context_tokens`` is read in the next step. ``held_tokens``: of the compute side, on average.
    The other two are context that either side has still to read.
    """

    growing: list[tuple[float, float]]
    context_tokens: float = 0.0
    held_tokens: float = 0.0
    compute_side_tokens: float = 0.0
    memory_side_tokens: float = 0.0


_Waiting = tuple[Request, BlendWork]
_PLANNED = 0.85
"""Part of the memory that is planned with; outputs turn out longer than expected, and the prompts
of a step need room too."""
_MOST_CREDIT = 2.0  # steps' worth of compute that may be made up for at once
_HEADS = 64  # of the memory end, among which the longest is: units of a density are no sorted lists


class PacedBlendOrder:
    """Waiting batch requests, so many of each kind that both lanes end together.

    1. *Memory end*: the longest output that fits at each of its steps beside the others as they
       will have grown; where it does not, the next one that does, and ends before.
    2. *Pace*: a step is given as much compute as its reads take, times the ratio in which the work
       left for the two lanes stands.
    3. *Compute side*: from the centre while its requests hold less than their reads, spread over
       the steps that are left, come to; then from the compute end, which hardly holds anything.

    ``kv_tokens``: KV memory of the batch. ``hint`` says what a request takes. Until ``begin`` is
    told of the whole batch, requests go in the order of adding: a sample runs first.

    Raises:
        ConfigError: a memory that is not above 0.

    Source: the density order, its sample and its hints are BlendServe's (§3); the rest is Weir's.
    """

    def __init__(
        self, *, lane: MemoryLane, kv_tokens: float, hint: Callable[[Request], BlendWork]
    ) -> None:
        if not kv_tokens > 0:
            raise ConfigError(f"kv_tokens is {kv_tokens}: give more than 0")
        self._lane = lane
        self._planned_tokens = _PLANNED * kv_tokens
        self._waiting = PlacedQueues(Scan, hint=hint, place=lambda known: known.scan)
        self._admitted: dict[RequestId, _Waiting] = {}
        self._ahead: Ahead | None = None
        self._credit_s = 0.0
        self._paced_at_s = -1.0

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self, scan: Scan) -> int:
        """Requests that were taken from there and wait."""
        return len(self._waiting.at(scan))

    def begin(self, ahead: Ahead) -> None:
        """From now on both lanes are looked after; what ran before is not part of it."""
        self._ahead = ahead
        self._admitted.clear()

    def add(self, request: Request) -> None:
        """A request waits, behind those of its place.

        Raises:
            DuplicateRequestError: its id waits already.
        """
        self._waiting.add(request)

    def remove(self, request_id: RequestId) -> None:
        """It waits no more: it ended before it ran.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        _, hint = self._waiting.leave(request_id)
        if self._ahead is not None:
            self._ahead.admitted(hint)

    def taken(self, request_id: RequestId) -> None:
        """It was admitted.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        entry = self._waiting.leave(request_id)
        self._admitted[request_id] = entry
        if self._ahead is not None:
            self._ahead.admitted(entry[1])
            self._credit_s -= entry[1].compute_s

    def candidates(self, limit: int, now_s: float) -> Sequence[Request]:
        """Up to ``limit`` in the order to try; asked again at the same time, the same ones."""
        ahead = self._ahead
        if ahead is None:
            return self._first(limit)
        running = self._now_running()
        reads = (
            ahead.compute_side_tokens + running.compute_side_tokens,
            ahead.memory_side_tokens + running.memory_side_tokens,
        )
        steps = max(self._longest_steps(running), sum(reads) / self._planned_tokens, 1.0)
        share = reads[0] / steps
        found = self._from_memory_end(limit // 2, running, self._planned_tokens - share)
        memory_s = self._lane.seconds(1.0, running.context_tokens)
        left_s = self._lane.seconds(steps, sum(reads))
        credit_s = self._credit(ahead.compute_s / left_s * memory_s, now_s)
        found += self._from_compute_side(limit - len(found), credit_s, share - running.held_tokens)
        return found if found or self._admitted else self._first(1)

    def _first(self, count: int) -> list[Request]:
        queues = map(self._waiting.at, Scan)
        return [request for request, _ in islice(chain.from_iterable(queues), count)]

    def _now_running(self) -> _Running:
        ended = [
            name
            for name, (request, _) in self._admitted.items()
            if request.state is RequestState.FINISHED
        ]
        for name in ended:
            del self._admitted[name]
        found = _Running(growing=[])
        for request, hint in self._admitted.values():
            steps = max(hint.decode_steps + 1 - request.output_tokens, 1.0)
            context = max(request.computed_tokens, hint.prompt_tokens)
            if hint.scan is Scan.MEMORY:
                found.growing.append((steps, context))
                found.context_tokens += context
                found.memory_side_tokens += (context + steps / 2) * steps
            elif hint.decode_steps > 0:
                found.context_tokens += context
                found.compute_side_tokens += context * steps
                found.held_tokens += hint.held_tokens
        found.growing.sort()
        return found

    def _longest_steps(self, running: _Running) -> float:
        """Steps until the longest output of the memory side ends, if it begins now."""
        heads = islice(self._waiting.at(Scan.MEMORY), _HEADS)
        waiting = max((hint.decode_steps for _, hint in heads), default=0.0)
        return max(waiting, running.growing[-1][0] if running.growing else 0.0)

    def _from_memory_end(self, most: int, running: _Running, room_tokens: float) -> list[Request]:
        """The first that fit, in order; they count as running."""
        found: list[Request] = []
        bound = fitting_steps(running.growing, room_tokens)
        for request, hint in self._waiting.at(Scan.MEMORY):
            if len(found) >= most or bound <= 0:
                break
            if hint.decode_steps > bound:
                continue
            room = room_tokens - hint.prompt_tokens
            if hint.decode_steps > fitting_steps(running.growing, room):
                continue
            found.append(request)
            running.growing.append((hint.decode_steps, hint.prompt_tokens))
            running.growing.sort()
            running.context_tokens += hint.prompt_tokens
            bound = fitting_steps(running.growing, room_tokens)
        return found

    def _credit(self, pace_s: float, now_s: float) -> float:
        """Compute that may be admitted: a step's worth more, whenever time went on."""
        if now_s > self._paced_at_s:
            self._paced_at_s = now_s
            self._credit_s = min(self._credit_s + pace_s, _MOST_CREDIT * pace_s)
        return self._credit_s

    def _from_compute_side(self, most: int, credit_s: float, lacking: float) -> list[Request]:
        """Of both places, as long as there is credit; ``lacking``: tokens that may be held more."""
        found: list[Request] = []
        dense: Iterator[_Waiting] = iter(self._waiting.at(Scan.COMPUTE))
        centre: Iterator[_Waiting] = iter(self._waiting.at(Scan.CENTRE))
        while credit_s > 0 and len(found) < most:
            entry = next(centre, None) if lacking > 0 else None
            if entry is not None:
                lacking -= entry[1].held_tokens
            else:
                entry = next(dense, None)
            if entry is None:
                break
            found.append(entry[0])
            credit_s -= entry[1].compute_s
        return found
