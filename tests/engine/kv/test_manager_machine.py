"""KvManager under random admissions, steps, preemptions and ends, against an outside model."""

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.engine.kv.requests import chained_hashes, make_request
from weir_engine.ids import BlockHash, RequestClass, RequestId
from weir_engine.kv.eviction import ClassedEviction
from weir_engine.kv.manager import KvManager
from weir_engine.kv.reserve import blocks_for
from weir_engine.request import Request

_BLOCK = 2
_TOTAL = 9
_PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class KvMachine(RuleBasedStateMachine):
    """A small planner drives the manager; the model knows what each block holds from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvManager(
            total_blocks=_TOTAL,
            block_size_tokens=_BLOCK,
            eviction=ClassedEviction(guard_online=True),
            guard_blocks=2,
        )
        self.threshold = 5
        self.tokens: dict[RequestId, list[int]] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.content: dict[int, BlockHash] = {}  # block -> hash of what it holds
        self.offered: dict[RequestId, int] = {}  # full blocks that the cache was offered
        self.adopted: set[int] = set()  # blocks that online held since they were last free
        self.asked = dict.fromkeys(RequestClass, 0)
        self.found = dict.fromkeys(RequestClass, 0)
        self.resumed = dict.fromkeys(RequestClass, 0)
        self.made = 0

    # -- model ------------------------------------------------------------------------------

    def _holders(self, *, online: bool) -> set[int]:
        return {
            block
            for request in self.running
            if request.is_online == online
            for block in self.kv.blocks(request.id)
        }

    def _prefix(self, request: Request) -> list[int]:
        """Blocks found by looking at what each block holds, at most the known tokens - 1."""
        found: list[int] = []
        tokens = self.tokens[request.id][: request.known_tokens - 1]
        for block_hash in chained_hashes(tokens, _BLOCK):
            block = next((b for b, held in self.content.items() if held == block_hash), None)
            if block is None:
                return found
            found.append(block)
        return found

    def _room(self, request: Request) -> int:
        if request.is_online:
            return self.kv.free_blocks
        return max(0, min(self.threshold - self.kv.offline_only_blocks, self.kv.free_blocks))

    def _allocated(self, request: Request, before: tuple[int, ...], hit_blocks: int) -> None:
        fresh = self.kv.blocks(request.id)[max(len(before), hit_blocks) :]
        lost = {self.content.pop(block) for block in fresh if block in self.content}
        assert all(not self.kv.is_cached(block_hash) for block_hash in lost)

    def _computed(self, request: Request, tokens: int) -> None:
        """Each full block is offered to the cache once; a private one stays private."""
        request.computed_tokens += tokens
        blocks = self.kv.blocks(request.id)
        full = min(request.computed_tokens // _BLOCK, len(request.block_hashes))
        for at in range(self.offered[request.id], full):
            block_hash = request.block_hashes[at]
            if block_hash not in self.content.values():
                self.content[blocks[at]] = block_hash
        self.offered[request.id] = max(self.offered[request.id], full)
        self.kv.commit(request)

    # -- rules ------------------------------------------------------------------------------

    @rule(prompt=_PROMPTS, online=st.booleans())
    def arrive(self, prompt: list[int], online: bool) -> None:
        self.made += 1
        request = make_request(f"r{self.made}", prompt, block_size=_BLOCK, online=online)
        self.tokens[request.id] = list(prompt)
        self.waiting.append(request)
        self.kv.expect(request)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting), label="request")
        hit = self.kv.hit(request)
        expected = self._prefix(request)
        held = self._holders(online=True) | self._holders(online=False)
        assert hit.tokens == len(expected) * _BLOCK <= request.known_tokens - 1
        assert hit.free_blocks == len([block for block in expected if block not in held])
        tokens = data.draw(st.integers(1, request.known_tokens - hit.tokens), label="tokens")
        cost = blocks_for(hit.tokens + tokens, _BLOCK) - len(expected) + hit.free_blocks
        if cost > self._room(request):
            return
        free, offline_only = self.kv.free_blocks, self.kv.offline_only_blocks
        assert self.kv.allocate(request, new_tokens=tokens, hit=hit) == cost
        assert self.kv.free_blocks == free - cost
        if not request.is_online:
            assert self.kv.offline_only_blocks == offline_only + cost <= self.threshold
        assert list(self.kv.blocks(request.id)[: len(expected)]) == expected
        self._allocated(request, (), len(expected))
        if request.preemptions:
            self.resumed[request.klass] += hit.tokens
        else:
            self.asked[request.klass] += request.known_tokens
            self.found[request.klass] += hit.tokens
        request.computed_tokens = hit.tokens
        self.offered[request.id] = len(expected)
        self.waiting.remove(request)
        self.running.append(request)
        self._computed(request, tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running), label="request")
        if not request.remaining_tokens:  # it yields a token first
            self.tokens[request.id].append(data.draw(st.integers(0, 1), label="output"))
            request.output_tokens += 1
            request.block_hashes[:] = chained_hashes(self.tokens[request.id], _BLOCK)
        tokens = data.draw(st.integers(1, request.remaining_tokens), label="tokens")
        before = self.kv.blocks(request.id)
        lacking = max(0, blocks_for(request.computed_tokens + tokens, _BLOCK) - len(before))
        if lacking > self._room(request):
            return
        foretold = self.kv.next_evicted(lacking)
        assert self.kv.allocate(request, new_tokens=tokens) == lacking
        assert not any(self.kv.is_cached(block_hash) for block_hash in foretold)
        self._allocated(request, before, 0)
        self._computed(request, tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """One, or several at once: what they share comes free with the last."""
        together = data.draw(st.lists(st.sampled_from(self.running), min_size=1, unique=True))
        released = self.kv.releasable_blocks([request.id for request in together])
        free = self.kv.free_blocks
        freed = sum(self.kv.preempt(request) for request in together)
        assert freed == released == self.kv.free_blocks - free
        for request in together:
            request.preemptions += 1
            request.computed_tokens = 0
            self.running.remove(request)
            self.waiting.append(request)

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running + self.waiting), label="request")
        offline_only = self.kv.offline_only_blocks
        self.kv.free(request.id)
        assert self.kv.offline_only_blocks <= offline_only
        (self.running if request in self.running else self.waiting).remove(request)
        assert self.kv.held_blocks(request.id) == 0

    @rule(threshold=st.integers(0, _TOTAL))
    def new_threshold(self, threshold: int) -> None:
        """Lowered below what offline pins, it only stops growth."""
        self.threshold = threshold

    # -- invariants -------------------------------------------------------------------------

    @invariant()
    def hits_are_what_the_blocks_hold(self) -> None:
        """Asked again and again, as plans do: what is remembered from before is still true."""
        held = self._holders(online=True) | self._holders(online=False)
        for request in self.waiting:
            expected = self._prefix(request)
            hit = self.kv.hit(request)
            assert hit.tokens == len(expected) * _BLOCK
            assert hit.free_blocks == len([block for block in expected if block not in held])

    @invariant()
    def blocks_add_up(self) -> None:
        """Design §3, rules 1 and 2, seen from the block tables."""
        online, offline = self._holders(online=True), self._holders(online=False)
        usage = self.kv.usage()
        self.adopted = (self.adopted & offline) | online
        alone = offline - self.adopted
        assert len(online | offline) + self.kv.free_blocks == _TOTAL
        assert usage.online_blocks == len(self.adopted)
        assert usage.offline_only_blocks == self.kv.offline_only_blocks == len(alone)
        for request in self.running:
            blocks = self.kv.blocks(request.id)
            assert len(set(blocks)) == len(blocks) == self.kv.held_blocks(request.id)
            for other in self.running:
                if other is not request:
                    shared = set(blocks) & set(self.kv.blocks(other.id))
                    assert all(block in self.content for block in shared)  # a computed prefix
        self.kv.check()

    @invariant()
    def evictions_are_foretold(self) -> None:
        """What the next allocations cost is in the cache, grows with them, and is all of it."""
        held = self._holders(online=True) | self._holders(online=False)
        foretold = [self.kv.next_evicted(blocks) for blocks in range(self.kv.free_blocks + 1)]
        assert all(less <= more for less, more in pairwise(foretold))
        assert foretold[-1] == {
            block_hash for block, block_hash in self.content.items() if block not in held
        }

    @invariant()
    def cache_holds_what_was_computed(self) -> None:
        for tokens in self.tokens.values():
            for block_hash in chained_hashes(tokens, _BLOCK):
                assert self.kv.is_cached(block_hash) == (block_hash in self.content.values())
        held = self._holders(online=True) | self._holders(online=False)
        assert self.kv.usage().cached_free_blocks == len(self.content.keys() - held)

    @invariant()
    def hits_exclude_recomputation(self) -> None:
        """Design §3, rule 6."""
        for klass in RequestClass:
            counts = self.kv.hit_counts(klass)
            assert counts.asked_tokens == self.asked[klass]
            assert counts.hit_tokens == self.found[klass]
            assert counts.resumed_tokens == self.resumed[klass]


TestKvMachine = KvMachine.TestCase
TestKvMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
