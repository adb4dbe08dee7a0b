"""How many KV blocks offline requests will ask for beyond what they hold.

An admission counts on that, or requests that run would take blocks from each other before one ends.
"""

from bisect import bisect_right, insort
from typing import NamedTuple, Protocol

import numpy as np

from weir_engine.request import Request
from weir_engine.sched.draft import StepDraft

_most = np.maximum.reduce  # without the wrapping that costs as much again


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

    def need(
        self, draft: StepDraft, request: Request, hit_tokens: int, adopted: int, *, room: float
    ) -> Need:
        """For a request with such a hit, of which ``adopted`` blocks are taken from free ones.

        What is within ``room`` may be less in truth: it fits anyway.
        """
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

    def need(
        self, draft: StepDraft, request: Request, hit_tokens: int, adopted: int, *, room: float
    ) -> Need:
        """What all of them lack, and the request's own known tokens, are free."""
        del room  # the truth costs no more
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
        size = self._size = draft.block_size_tokens
        self._most = len(running) + draft.seqs_left
        self._running = tuple(running)
        self._joined: list[tuple[int, int]] = []  # in this step: as `_left` gives them
        held = at_ends = 0
        for request in running:  # in one pass and without calls: every admission waits for it
            outputs = request.expected_output_tokens or request.max_output_tokens
            done, hit_tokens = request.output_tokens, request.hit_tokens
            tokens = outputs if outputs > done else done + 1
            at_ends -= (hit_tokens - request.prompt_tokens - tokens) // size
            computed = request.computed_tokens
            if computed > hit_tokens:
                held -= (hit_tokens - computed) // size
        self._held, self._at_ends = held, at_ends
        self._peaks: _Peaks | None = None  # made where it must be known

    def need(
        self, draft: StepDraft, request: Request, hit_tokens: int, adopted: int, *, room: float
    ) -> Need:
        """What they hold at the peak beyond now, at least the request's known tokens."""
        left, own = _left(request, hit_tokens)
        whole = draft.blocks_behind(hit_tokens, request.known_tokens - hit_tokens)
        most = self._at_ends - (-(left + own) // self._size)
        ends = max(most - self._held, whole) + adopted
        if ends <= room:
            return Need(ends, ends)
        if self._peaks is None:
            running = [_left(each, each.hit_tokens) for each in self._running]
            self._peaks = _Peaks(running + self._joined, self._size, self._most)
        peak = min(self._peaks.with_one_more(left, own), most)
        need = max(peak - self._held, whole) + adopted
        return Need(need, need)

    def admit(self, draft: StepDraft, request: Request, hit_tokens: int, tokens: int) -> None:
        """It is one of those that hold blocks."""
        left, own = _left(request, hit_tokens)
        self._held += draft.blocks_for(0, tokens)
        self._at_ends -= -(left + own) // self._size
        if self._peaks is None:
            self._joined.append((left, own))
        else:
            self._peaks.add(left, own)


class _Peaks:
    """The peak of some requests and any one more, without going through all of them each time.

    While the k that end last are there, and the last of those that end before has just ended, they
    hold their own tokens and k times those that the k-th has left, and k open blocks; one more
    request adds its own to all that it outlives, and moves them by a place.

    In whole numbers: a token counts 2, half a block its size in tokens.
    """

    def __init__(self, ends: list[tuple[int, int]], size: int, most: int) -> None:
        """``ends`` as `_left` gives them; there will be ``most`` of them in the end."""
        ends.sort(reverse=True)
        left, own = np.array(ends, dtype=np.int64).reshape(-1, 2).T
        count = len(ends)
        self._size = size
        self._lefts: list[int] = left[::-1].tolist()  # the first to end first: rows have it last
        # By place: what the k-th adds for each one there (all that it has left, and half a block);
        # what is held when it ends; the same with one more before it, but for that one's own.
        self._step, self._held, self._moved = np.zeros((3, most), dtype=np.int64)
        step = self._step[:count] = 2 * left + size
        held = self._held[:count] = (2 * own).cumsum() + np.arange(1, count + 1) * step
        self._moved[:count] = held + step

    def add(self, left: int, own: int) -> None:
        """One more of them."""
        place, step, held = self._of(left, own)
        count = len(self._lefts)
        old, new = slice(place, count), slice(place + 1, count + 1)
        steps = self._step[old].copy()
        later = self._held[new] = self._moved[old] + 2 * own
        self._moved[new] = later + steps
        self._step[new] = steps
        self._step[place], self._held[place], self._moved[place] = step, held, held + step
        insort(self._lefts, left)

    def with_one_more(self, left: int, own: int) -> float:
        """Blocks at the peak with such a request."""
        place, _, peak = self._of(left, own)
        count = len(self._lefts)
        if place:
            peak = max(peak, int(_most(self._held[:place])))
        if place < count:
            peak = max(peak, int(_most(self._moved[place:count])) + 2 * own)
        return max(peak, 0) / (2 * self._size)

    def _of(self, left: int, own: int) -> tuple[int, int, int]:
        """Such a request's place, what it adds for each one there, what is held when it ends."""
        place = len(self._lefts) - bisect_right(self._lefts, left)
        step = 2 * left + self._size
        before = 0
        if place:
            before = int(self._moved[place - 1]) - (place + 1) * int(self._step[place - 1])
        return place, step, before + 2 * own + (place + 1) * step


def _end_tokens(request: Request) -> int:
    """Tokens it has at its expected end, one more than now at least."""
    outputs = request.expected_output_tokens or request.max_output_tokens
    return request.prompt_tokens + max(outputs, request.output_tokens + 1)


def _later_blocks(draft: StepDraft, request: Request) -> int:
    """Blocks it will ask for beyond its known tokens until its expected end."""
    known = request.known_tokens
    return draft.blocks_for(known, _end_tokens(request) - known)


def _left(request: Request, hit_tokens: int) -> tuple[int, int]:
    """(Tokens until its expected end, one at least; tokens known that are its own)."""
    outputs = request.expected_output_tokens or request.max_output_tokens
    done = request.output_tokens
    return max(outputs - done, 1), request.prompt_tokens + done - hit_tokens
