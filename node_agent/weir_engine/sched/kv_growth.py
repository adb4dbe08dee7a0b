"""How many KV blocks offline requests will ask for beyond what they hold.

An admission counts on that, or requests that run would take blocks from each other before one ends.
"""

from typing import NamedTuple, Protocol

from weir_engine.request import Request
from weir_engine.sched.draft import StepDraft

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
        self._ends = [_left(request, request.hit_tokens) for request in running]

    def need(self, draft: StepDraft, request: Request, hit_tokens: int, adopted: int) -> Need:
        """What they hold at the peak beyond now, at least the request's known tokens."""
        size = draft.block_size_tokens
        peak = 0.0
        tokens = at_ends = 0
        # The last to end comes first.
        ends = sorted([*self._ends, _left(request, hit_tokens)], reverse=True)
        for alive, (left, own) in enumerate(ends, start=1):
            tokens += own
            at_ends += -(-(own + left) // size)
            peak = max(peak, (tokens + alive * left) / size + alive * _OPEN_BLOCK)
        whole = draft.blocks_behind(hit_tokens, request.known_tokens - hit_tokens)
        need = max(min(peak, at_ends) - self._held, whole) + adopted
        return Need(need, need)

    def admit(self, draft: StepDraft, request: Request, hit_tokens: int, tokens: int) -> None:
        """It is one of those that hold blocks."""
        self._held += draft.blocks_for(0, tokens)
        self._ends.append(_left(request, hit_tokens))


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
