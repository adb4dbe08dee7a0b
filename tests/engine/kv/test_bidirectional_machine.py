"""Blocks filled from both ends, under random events, against a model of what each slot holds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.engine.kv.requests import make_request
from weir_engine.ids import RequestId
from weir_engine.kv.bidirectional import BidirectionalKvManager
from weir_engine.kv.layout import filled_slots, most_empty_first, one_at_a_time
from weir_engine.request import Request

_SIZE = 3
_TOTAL = 6
Token = tuple[RequestId, int]


class BothEndsMachine(RuleBasedStateMachine):
    """Tokens are written to slots as a kernel would; what is overwritten must have been copied."""

    def __init__(self) -> None:
        super().__init__()
        self.kv: BidirectionalKvManager | None = None
        self.slots: dict[tuple[int, int], Token] = {}
        self.host: set[Token] = set()
        self.running: list[Request] = []
        self.made = 0

    @property
    def manager(self) -> BidirectionalKvManager:
        if self.kv is None:
            self.kv = BidirectionalKvManager(
                total_blocks=_TOTAL, block_size_tokens=_SIZE, prefix_cache=False
            )
        return self.kv

    # -- model ------------------------------------------------------------------------------

    def place(self, request: Request, token: int) -> tuple[int, int]:
        """The slot of a token: from the left for online, from the right for offline."""
        at, offset = divmod(token, _SIZE)
        block = self.manager.blocks(request.id)[at]
        return block, offset if request.is_online else _SIZE - 1 - offset

    def lost(self, request: Request) -> set[Token]:
        """Tokens of a running request that are in no slot of its own."""
        return {
            (request.id, token)
            for token in range(request.computed_tokens)
            if self.slots.get(self.place(request, token)) != (request.id, token)
        }

    def reads(self, token: Token, place: tuple[int, int]) -> bool:
        """Whether a running request still looks for a token there; it may have moved its blocks."""
        return any(r.id == token[0] and self.place(r, token[1]) == place for r in self.running)

    def write(self, request: Request, tokens: int) -> None:
        """A step: what is overwritten is copied out first, as ``settle`` says."""
        first = request.computed_tokens
        request.computed_tokens += tokens
        self.manager.commit(request)
        copied = self.manager.settle()
        overwritten = set()
        for token in range(first, first + tokens):
            place = self.place(request, token)
            held = self.slots.get(place)
            if held is not None and self.reads(held, place):
                overwritten.add(held)
            self.slots[place] = (request.id, token)
        assert len(overwritten) == copied
        assert not any(name == r.id for name, _ in overwritten for r in self.running if r.is_online)
        self.host |= overwritten

    def room(self, request: Request, blocks: int) -> bool:
        lacking = blocks - self.manager.free_blocks
        return lacking <= 0 or (request.is_online and self.manager.claims(lacking) is not None)

    # -- rules ------------------------------------------------------------------------------

    @precondition(lambda self: self.kv is None)
    @rule(paper=st.booleans())
    def start(self, paper: bool) -> None:
        self.kv = BidirectionalKvManager(
            total_blocks=_TOTAL,
            block_size_tokens=_SIZE,
            prefix_cache=False,
            order=most_empty_first if paper else one_at_a_time,
        )

    @rule(prompt=st.integers(1, 10), online=st.booleans())
    def admit(self, prompt: int, online: bool) -> None:
        self.made += 1
        request = make_request(f"r{self.made}", range(prompt), block_size=_SIZE, online=online)
        request.arrival_s = float(self.made)
        blocks = -(-prompt // _SIZE)
        if not self.room(request, blocks):
            return
        lacking = max(0, blocks - self.manager.free_blocks)
        backs = set(self.manager.claims(lacking) or ())
        before = {block for r in self.running for block in self.manager.blocks(r.id)}
        assert self.manager.allocate(request, new_tokens=prompt) == blocks
        shared = set(self.manager.blocks(request.id)) & before
        assert len(shared) == lacking
        assert backs == {
            r.id for r in self.running if shared.intersection(self.manager.blocks(r.id))
        }
        self.running.append(request)
        self.write(request, prompt)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running), label="request")
        if not request.remaining_tokens:
            request.output_tokens += 1
        if not request.is_online:
            missing = self.manager.missing(request)
            if missing.fresh_blocks > self.manager.free_blocks:
                return
            back = self.lost(request)
            assert missing.slots == len(back) == self.manager.restore(request)
            assert back <= self.host
            self.host -= back
            for token in range(request.computed_tokens):
                self.slots[self.place(request, token)] = (request.id, token)
            assert self.manager.missing(request).blocks == 0
        held = self.manager.held_blocks(request.id)
        needed = -(-request.known_tokens // _SIZE)
        if not self.room(request, needed - held):
            return
        self.manager.allocate(request, new_tokens=request.remaining_tokens)
        self.write(request, request.remaining_tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), preempt=st.booleans())
    def leave(self, data: st.DataObject, preempt: bool) -> None:
        request = data.draw(st.sampled_from(self.running), label="request")
        free, released = self.manager.free_blocks, self.manager.releasable_blocks([request.id])
        if preempt:
            self.manager.preempt(request)
            self.manager.forget(request.id)
        else:
            self.manager.free(request.id)
        assert self.manager.free_blocks == free + released
        self.running.remove(request)
        self.host = {token for token in self.host if token[0] != request.id}

    # -- invariants -------------------------------------------------------------------------

    @invariant()
    def online_never_misses_a_token(self) -> None:
        assert not any(self.lost(request) for request in self.running if request.is_online)

    @invariant()
    def what_offline_misses_is_on_the_host_and_nothing_else(self) -> None:
        missing = {t for r in self.running if not r.is_online for t in self.lost(r)}
        assert missing == self.host
        assert self.manager.checkpointed_slots == len(self.host)

    @invariant()
    def blocks_add_up(self) -> None:
        """Design §3, rules 1 and 2: one front and one back at most."""
        manager = self.manager
        for online in (True, False):
            own = [b for r in self.running if r.is_online == online for b in manager.blocks(r.id)]
            assert len(set(own)) == len(own)
        held = {block for r in self.running for block in manager.blocks(r.id)}
        assert len(held) + manager.free_blocks == _TOTAL
        manager.check()

    @invariant()
    def a_block_is_full_before_slots_are_copied(self) -> None:
        for request in self.running:
            for block in self.manager.blocks(request.id):
                shared = self.manager.shared_block(block)
                if shared is None or shared.front is None:
                    continue
                front = filled_slots(shared.front.computed_tokens, shared.front_at, _SIZE)
                back = filled_slots(shared.back.computed_tokens, shared.back_at, _SIZE)
                assert shared.lost_slots >= max(0, front + back - _SIZE)


TestBothEndsMachine = BothEndsMachine.TestCase
TestBothEndsMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
