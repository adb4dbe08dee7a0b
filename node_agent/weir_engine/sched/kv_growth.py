"""How many KV blocks offline requests will ask for beyond what they hold.

An admission counts on that, or requests that run would take blocks from each other before one ends.
"""

from bisect import bisect_right, insort
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from weir_engine.request import Request
from weir_engine.sched.draft import StepDraft

Tokens = NDArray[np.int64]
# The last block of a request is half full on average.
_OPEN_BLOCK = 0.5


class Need(NamedTuple):
    """Blocks for an admission: ``free`` of them now, ``held`` more than now by offline work."""

    free: float
    held: float


def known_need(draft: StepDraft, request: Request, hit_tokens: int, adopted: int) -> Need:
    """For the tokens that a request has, whatever it may produce."""
    known = draft.blocks_behind(hit_tokens, request.known_tokens - hit_tokens) + adopted
    return Need(known, known)


class KvGrowth(Protocol):
    """Blocks that the running offline requests, and one more, ask for."""

    def need(self, draft: StepDraft, request: Request, hit_tokens: int, adopted: int) -> Need:
        """For a request with such a hit, of which ``adopted`` blocks are taken from free ones."""
        ...

    def admit(self, draft: StepDraft, request: Request, hit_tokens: int, tokens: int) -> None:
        """It joins with this step's ``tokens`` behind the hit."""
        ...


class GrowthToEnds:
    """Each request gets what it lacks until its expected end, whenever the others end.

    A request that lacks a block is preempted and computed again: so none may.
    """

    def __init__(self, draft: StepDraft, running: list[Request]) -> None:
        """``running`` are the offline requests that run."""
        size = -draft.block_size_tokens  # dividing by it rounds up, to less
        blocks = 0
        for request in running:
            blocks += request.computed_tokens // size - _end_tokens(request) // size
        self._blocks = blocks

    def need(self, draft: StepDraft, request: Request, hit_tokens: int, adopted: int) -> Need:
        """What all of them lack, and the request's own known tokens, are free."""
        whole = draft.blocks_behind(hit_tokens, request.known_tokens - hit_tokens)
        free = whole + adopted + self._blocks
        return Need(free, free + _later_blocks(draft, request))

    def admit(self, draft: StepDraft, request: Request, hit_tokens: int, tokens: int) -> None:
        """The others wait for what it lacks."""
        whole = draft.blocks_behind(hit_tokens, request.known_tokens - hit_tokens)
        later = _later_blocks(draft, request)
        self._blocks += whole - draft.blocks_behind(hit_tokens, tokens) + later


class GrowthToPeak:
    """The most that all of them hold together at one time, for they end one after the other.

    Each is taken to get a token a step. A request that lacks a block then waits with what it has,
    or gives way, so the peak may be wrong at times. A prefix that a request found in the cache is
    not its own: it is held before and after.
    """

    def __init__(self, draft: StepDraft, running: list[Request]) -> None:
        """``running`` are the offline requests that run."""
        size = draft.block_size_tokens
        own = [request.computed_tokens - request.hit_tokens for request in running]
        self._held = sum(-(-tokens // size) for tokens in own if tokens > 0)
        self._ends = sorted([_left(request, request.hit_tokens) for request in running])
        self._peaks: _Peaks | None = None  # made when somebody asks

    def need(self, draft: StepDraft, request: Request, hit_tokens: int, adopted: int) -> Need:
        """What they hold at the peak beyond now, at least the request's known tokens."""
        end = _left(request, hit_tokens)
        if self._peaks is None:
            table = np.array(self._ends[::-1], dtype=np.int64).reshape(-1, 2)
            self._peaks = _Peaks(table[:, 0], table[:, 1], draft.block_size_tokens)
        peak = self._peaks.with_one_more(self._place(end), *end)
        whole = draft.blocks_behind(hit_tokens, request.known_tokens - hit_tokens)
        need = max(peak - self._held, whole) + adopted
        return Need(need, need)

    def admit(self, draft: StepDraft, request: Request, hit_tokens: int, tokens: int) -> None:
        """It is one of those that hold blocks."""
        self._held += draft.blocks_for(0, tokens)
        end = _left(request, hit_tokens)
        if self._peaks is not None:
            self._peaks = self._peaks.and_one_more(self._place(end), *end)
        insort(self._ends, end)

    def _place(self, end: tuple[int, int]) -> int:
        """How many outlive it."""
        return len(self._ends) - bisect_right(self._ends, end)


class _Peaks:
    """The peak of some requests and any one more, without going through all of them each time.

    ``left`` and ``own`` as `_left` gives them, the last to end first. While the k that end last are
    there, and the last of those that end before has just ended, they hold their tokens and k times
    those that the k-th has left; one more request adds its own to all that it outlives, and moves
    them by a place.
    """

    def __init__(self, left: Tokens, own: Tokens, size: int) -> None:
        self._left = left
        self._own = own
        self._size = size
        self._tokens = own.cumsum()
        places = np.arange(1, len(own) + 1)
        peaks = (self._tokens + places * left) / size + places * _OPEN_BLOCK
        self._peaks = np.maximum.accumulate(peaks)
        places += 1
        self._moved = self._tokens + places * left
        self._moved_open = places * _OPEN_BLOCK
        self._at_ends = int((-(-(own + left) // size)).sum())

    def and_one_more(self, place: int, left: int, own: int) -> "_Peaks":
        """With a request that ``place`` others outlive."""
        lefts, owns = self._left, self._own
        return _Peaks(
            np.concatenate((lefts[:place], (left,), lefts[place:])),
            np.concatenate((owns[:place], (own,), owns[place:])),
            self._size,
        )

    def with_one_more(self, place: int, left: int, own: int) -> float:
        """Blocks at the peak with such a request, and no more than all have at their ends."""
        size = self._size
        before = int(self._tokens[place - 1]) if place else 0
        peak = (before + own + (place + 1) * left) / size + (place + 1) * _OPEN_BLOCK
        if place:
            peak = max(peak, float(self._peaks[place - 1]))
        if place < len(self._own):
            moved = (self._moved[place:] + own) / size + self._moved_open[place:]
            peak = max(peak, float(moved.max()))
        return min(max(peak, 0.0), self._at_ends - (-(own + left) // size))


def _end_tokens(request: Request) -> int:
    """Tokens it has at its expected end, one more than now at least."""
    outputs = request.expected_output_tokens or request.max_output_tokens
    return request.prompt_tokens + max(outputs, request.output_tokens + 1)


def _later_blocks(draft: StepDraft, request: Request) -> int:
    """Blocks it will ask for beyond its known tokens until its expected end."""
    known = request.known_tokens
    return draft.blocks_for(known, _end_tokens(request) - known)


def _left(request: Request, hit_tokens: int) -> tuple[int, int]:
    """(Tokens until its expected end, tokens known that are its own)."""
    known = request.known_tokens
    return _end_tokens(request) - known, known - hit_tokens
