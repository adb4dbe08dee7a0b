"""A batch at the pace of its two lanes: memory and compute are both busy in every step.

BlendServe scans a density order from both ends and shares memory by what requests hold on average.
Long outputs that begin together read little at first and much later, so one lane or the other
idles. This order looks ahead instead: at what running outputs will have grown to, and at the work
that is left for each lane. It takes from three places of the same density order.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice

from weir_engine.errors import ConfigError, DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.density import DensityModel
from weir_engine.request import Request, RequestState


class Scan(StrEnum):
    """Where in the density order a request was taken from."""

    COMPUTE = "compute"
    """The end that computes most and holds least."""
    CENTRE = "centre"
    """The least dense of the compute-bound part, from there towards the compute end."""
    MEMORY = "memory"
    """The end of the long outputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneHint:
    """What a request is expected to take of each lane.

    ``compute_s``: its part of the compute-bound work, in seconds. ``prompt_tokens``: its context
    when it begins to decode. ``decode_steps``: steps in which it decodes; the first output token
    comes with the prompt's last.
    """

    scan: Scan
    compute_s: float
    prompt_tokens: float
    decode_steps: float

    @property
    def read_tokens(self) -> float:
        """Tokens of context that all its decodes read."""
        return (self.prompt_tokens + self.decode_steps / 2) * self.decode_steps

    @property
    def held_tokens(self) -> float:
        """Tokens of context read in a step on average, over the steps that it is there."""
        return self.read_tokens / (self.decode_steps + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLane:
    """Seconds that a step reads: the weights, and each token of context of its decodes."""

    weights_s: float
    token_s: float

    @classmethod
    def of(cls, model: DensityModel) -> "MemoryLane":
        """A device's, at its peak bandwidth, as compute densities are."""
        return cls(
            weights_s=model.parameters * model.element_bytes / model.bandwidth_bytes_s,
            token_s=model.kv_bytes_a_token / model.bandwidth_bytes_s,
        )

    def seconds(self, steps: float, read_tokens: float) -> float:
        """Of so many steps that read so many tokens of context in all."""
        return steps * self.weights_s + read_tokens * self.token_s


@dataclass(kw_only=True, slots=True)
class Ahead:
    """Work of the batch that is not admitted yet, whether it waits in the pool or not.

    ``compute_s``: of all requests, in seconds. ``compute_side_tokens`` and ``memory_side_tokens``:
    context that the decodes of either side will read, see ``LaneHint.read_tokens``.
    """

    compute_s: float
    compute_side_tokens: float
    memory_side_tokens: float

    def admitted(self, hint: LaneHint) -> None:
        """One of them was admitted."""
        self.compute_s = max(self.compute_s - hint.compute_s, 0.0)
        if hint.scan is Scan.MEMORY:
            self.memory_side_tokens = max(self.memory_side_tokens - hint.read_tokens, 0.0)
        else:
            self.compute_side_tokens = max(self.compute_side_tokens - hint.read_tokens, 0.0)


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


_Waiting = tuple[Request, LaneHint]
_PLANNED = 0.85
"""Part of the memory that is planned with; outputs turn out longer than expected, and the prompts
of a step need room too."""
_MOST_CREDIT = 2.0  # steps' worth of compute that may be made up for at once
_HEADS = 64  # of the memory end, among which the longest is: units of a density are no sorted lists


class LaneOrder:
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
        self, *, lane: MemoryLane, kv_tokens: float, hint: Callable[[Request], LaneHint]
    ) -> None:
        if not kv_tokens > 0:
            raise ConfigError(f"kv_tokens is {kv_tokens}: give more than 0")
        self._lane = lane
        self._planned_tokens = _PLANNED * kv_tokens
        self._hint = hint
        # Ordered: a plain dict looks for its first entry past all that left before.
        self._waiting: dict[Scan, OrderedDict[RequestId, _Waiting]] = {
            scan: OrderedDict() for scan in Scan
        }
        self._scan: dict[RequestId, Scan] = {}
        self._admitted: dict[RequestId, _Waiting] = {}
        self._ahead: Ahead | None = None
        self._credit_s = 0.0
        self._paced_at_s = -1.0

    def __len__(self) -> int:
        return len(self._scan)

    def waiting(self, scan: Scan) -> int:
        """Requests that were taken from there and wait."""
        return len(self._waiting[scan])

    def begin(self, ahead: Ahead) -> None:
        """From now on both lanes are looked after; what ran before is not part of it."""
        self._ahead = ahead
        self._admitted.clear()

    def add(self, request: Request) -> None:
        """A request waits, behind those of its place.

        Raises:
            DuplicateRequestError: its id waits already.
        """
        if request.id in self._scan:
            raise DuplicateRequestError(f"request {request.id} waits in the pool already")
        hint = self._hint(request)
        self._scan[request.id] = hint.scan
        self._waiting[hint.scan][request.id] = (request, hint)

    def remove(self, request_id: RequestId) -> None:
        """It waits no more: it ended before it ran.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        _, hint = self._leave(request_id)
        if self._ahead is not None:
            self._ahead.admitted(hint)

    def taken(self, request_id: RequestId) -> None:
        """It was admitted.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        entry = self._leave(request_id)
        self._admitted[request_id] = entry
        if self._ahead is not None:
            self._ahead.admitted(entry[1])
            self._credit_s -= entry[1].compute_s

    def candidates(self, limit: int, now_s: float) -> Sequence[Request]:
        """Up to ``limit`` in the order to try; asked again at the same time, the same ones."""
        ahead = self._ahead
        if ahead is None:
            queues = (queue.values() for queue in self._waiting.values())
            return [request for request, _ in islice(chain.from_iterable(queues), limit)]
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
        if found or self._admitted:
            return found
        queues = (queue.values() for queue in self._waiting.values())
        return [request for request, _ in islice(chain.from_iterable(queues), 1)]

    def _leave(self, request_id: RequestId) -> _Waiting:
        scan = self._scan.pop(request_id, None)
        if scan is None:
            raise UnknownRequestError(f"request {request_id} does not wait in the pool")
        return self._waiting[scan].pop(request_id)

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
        heads = islice(self._waiting[Scan.MEMORY].values(), _HEADS)
        waiting = max((hint.decode_steps for _, hint in heads), default=0.0)
        return max(waiting, running.growing[-1][0] if running.growing else 0.0)

    def _from_memory_end(self, most: int, running: _Running, room_tokens: float) -> list[Request]:
        """The first that fit, in order; they count as running."""
        found: list[Request] = []
        bound = fitting_steps(running.growing, room_tokens)
        for request, hint in self._waiting[Scan.MEMORY].values():
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
        dense: Iterator[_Waiting] = iter(self._waiting[Scan.COMPUTE].values())
        centre: Iterator[_Waiting] = iter(self._waiting[Scan.CENTRE].values())
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


def fitting_steps(growing: Sequence[tuple[float, float]], room_tokens: float) -> float:
    """The most steps that one more output may grow for, from nothing, within the room.

    ``growing``: remaining steps and context now of those that run, by steps; each grows by a token
    a step and gives its context back when it ends. At no step is more held than ``room_tokens``.
    """
    held, at, count = sum(context for _, context in growing), 0.0, len(growing)
    for steps, context in growing:
        end = held + count * (steps - at)
        if end + steps > room_tokens:
            break
        held, at, count = end - (context + steps), steps, count - 1
    return max(at + (room_tokens - held - at) / (count + 1), 0.0)
