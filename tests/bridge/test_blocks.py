"""The free-block queue, the ledger and the KV view, without an engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_agent.vllm_bridge.kv import VllmKv
from weir_agent.vllm_bridge.ledger import BlockLedger
from weir_agent.vllm_bridge.queue import ClassedBlockQueue
from weir_agent.vllm_bridge.tails import LEAST_COPIED_TOKENS, SharedTails
from weir_engine.errors import InvariantError
from weir_engine.ids import BlockHash, RequestClass, RequestId
from weir_engine.kv.eviction import LruEviction
from weir_engine.kv.view import PrefixHit
from weir_engine.request import Request

SIZE = 4
PROMPT_IDS: dict[str, list[int]] = {}


@dataclass
class Block:
    """What the bridge uses of vLLM's block."""

    block_id: int
    ref_cnt: int = 0
    block_hash: bytes | None = None


class Pool:
    """A block pool as vLLM runs one: hashes, reference counts, and Weir's queue inside."""

    def __init__(
        self, blocks: int, *, lru: bool = False, least_tokens: int = LEAST_COPIED_TOKENS
    ) -> None:
        self.blocks = [Block(number) for number in range(blocks)]
        self.queue = ClassedBlockQueue(
            self.blocks, range(blocks), policy=LruEviction() if lru else None
        )
        self.cached: dict[BlockHash, Block] = {}
        self.tables: dict[str, list[Block]] = {}
        self.ledger = BlockLedger(
            blocks,
            queue=self.queue,
            find=self.cached.get,
            content_hash=lambda key: key[:-4],
            is_online=lambda _name: True,  # asked for vLLM's outputs alone, which no test here has
        )
        self.kv = VllmKv(
            total_blocks=blocks,
            queue=self.queue,
            ledger=self.ledger,
            find=self.cached.get,
            table=lambda name: self.tables.get(name, []),
            tails=SharedTails(
                lambda name, first, end: PROMPT_IDS[name][first:end],
                block_size_tokens=SIZE,
                total_blocks=blocks,
                least_tokens=least_tokens,
            ),
        )

    def run(self, request: Request, *, blocks: int) -> None:
        """Admit a request with its hit, give it ``blocks`` in all and hash the full ones."""
        hit = self.kv.hit(request)
        found = self.kv.hit_blocks(request, hit.tokens)
        if hit.tokens % SIZE:
            assert found.pop().block_hash is not None  # the copied one is not kept
        for block in found:
            if block.ref_cnt == 0:
                self.queue.remove(block)
            block.ref_cnt += 1
        fresh = self.queue.popleft_n(blocks - len(found))
        for block in fresh:
            if block.block_hash is not None:
                del self.cached[block.block_hash[:-4]]
                block.block_hash = None
            block.ref_cnt = 1
        table = self.tables[request.id] = [*found, *fresh]
        self.ledger.waiting.remove(request.id)
        self.ledger.admitted(request.id, [b.block_id for b in table], online=request.is_online)
        hashed = []
        for index, (block, block_hash) in enumerate(zip(table, request.block_hashes, strict=False)):
            if block.block_hash is None and block_hash not in self.cached:
                assert isinstance(block_hash, bytes)
                block.block_hash = block_hash + b"\0\0\0\0"
                self.cached[block_hash] = block
                hashed.append(block)
                if index:
                    self.kv.tails.hashed(request.id, request.block_hashes[index - 1], block, index)
        self.ledger.hashed(hashed, online=request.is_online)

    def end(self, request: Request) -> None:
        """Give a request's blocks back, as vLLM does: the last first."""
        first: list[Block] = []
        last: list[Block] = []
        for block in reversed(self.tables.pop(request.id)):
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (last if block.block_hash is not None else first).append(block)
        self.queue.prepend_n(first)
        self.queue.append_n(last)
        self.ledger.released(request.id, request.block_hashes)


def request(name: str, prompt: str, *, offline: bool = False) -> Request:
    """A request whose prompt is letters; equal beginnings have equal hashes."""
    full = len(prompt) // SIZE
    PROMPT_IDS[name] = list(prompt.encode())
    return Request(
        id=RequestId(name),
        klass=RequestClass.OFFLINE if offline else RequestClass.ONLINE,
        arrival_s=0.0,
        prompt_tokens=len(prompt),
        max_output_tokens=4,
        block_hashes=[prompt[: SIZE * (index + 1)].encode() for index in range(full)],
    )


def ids(blocks: Iterable[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def test_the_queue_hands_out_blocks_without_a_prefix_first() -> None:
    pool = Pool(4)
    online = request("a", "abcdefgh")
    pool.run(online, blocks=3)
    pool.end(online)
    assert ids(pool.queue.get_all_free_blocks())[:2] == [2, 3]
    assert ids(pool.queue.popleft_n(2)) == [2, 3]
    assert pool.queue.num_free_blocks == 2
    assert pool.queue.popleft().block_id == 1  # the end of a prefix goes before its start


def test_the_queue_can_be_walked_from_any_block() -> None:
    pool = Pool(5)
    assert ids(pool.queue.iter_blocks_after(None)) == [0, 1, 2, 3, 4]
    assert ids(pool.queue.iter_blocks_after(pool.blocks[2])) == [3, 4]
    pool.queue.remove(pool.blocks[3])
    pool.queue.append(pool.blocks[3])
    assert ids(pool.queue.get_all_free_blocks()) == [0, 1, 2, 4, 3]


def test_offline_prefixes_go_before_online_ones() -> None:
    """Echo §4.2."""
    pool = Pool(4)
    online, offline = request("a", "abcdefgh"), request("b", "12345678", offline=True)
    for one in (offline, online):
        pool.run(one, blocks=2)
        pool.end(one)
    offline_again = request("c", "12345678", offline=True)
    pool.run(offline_again, blocks=2)
    pool.end(offline_again)  # used last, and still goes first
    assert ids(pool.queue.get_all_free_blocks()) == [1, 0, 3, 2]


def test_a_block_that_online_adopts_stays_onlines_until_its_hash_is_reset() -> None:
    """Design §9."""
    pool = Pool(2)
    offline = request("a", "12345678x", offline=True)
    pool.run(offline, blocks=2)
    online = request("b", "12345678y")
    pool.ledger.admitted(RequestId("b"), [0], online=True)
    assert pool.ledger.offline_only_blocks == 1
    pool.ledger.released(online.id)
    assert pool.ledger.offline_only_blocks == 1  # an online request that ends takes no room away
    pool.end(offline)
    assert pool.ledger.offline_only_blocks == 0
    assert pool.queue.free.label(0).online
    assert not pool.queue.free.label(1).online
    pool.queue.popleft_n(2)
    assert not pool.queue.free.label(0).online


def test_what_waiting_offline_requests_want_is_kept_longest() -> None:
    pool = Pool(4)
    wanted, online = request("a", "12345678", offline=True), request("b", "abcdefgh")
    for one in (wanted, online):
        pool.run(one, blocks=2)
        pool.end(one)
    pool.ledger.waiting.add(RequestId("w"), wanted.block_hashes)
    assert ids(pool.queue.get_all_free_blocks()) == [3, 2, 1, 0]
    pool.ledger.waiting.remove(RequestId("w"))
    assert sorted(ids(pool.queue.get_all_free_blocks())[:2]) == [0, 1]


def test_plain_eviction_is_by_last_use() -> None:
    pool = Pool(4, lru=True)
    online, offline = request("a", "abcdefgh"), request("b", "12345678", offline=True)
    for one in (online, offline):
        pool.run(one, blocks=2)
        pool.end(one)
    assert ids(pool.queue.get_all_free_blocks()) == [1, 0, 3, 2]


def test_a_reset_cache_leaves_no_label() -> None:
    pool = Pool(2)
    online = request("a", "abcdefgh")
    pool.run(online, blocks=2)
    pool.end(online)
    pool.ledger.cache_was_reset()
    assert not pool.queue.free.label(0).cached


def test_the_ledger_refuses_a_second_admission_and_finds_what_differs() -> None:
    pool = Pool(4)
    pool.run(request("a", "abcdefgh"), blocks=2)
    with pytest.raises(InvariantError, match="request a holds 2 blocks"):
        pool.ledger.admitted(RequestId("a"), [3], online=True)
    with pytest.raises(InvariantError, match=r"the ledger has blocks \[0, 1\], vLLM \[0\]"):
        pool.ledger.audit({"a": [pool.blocks[0]]})
    with pytest.raises(InvariantError, match=r"the ledger has blocks of \['a'\]"):
        pool.ledger.audit({})


def test_a_hit_leaves_the_last_token_to_compute() -> None:
    pool = Pool(8)
    first = request("a", "abcdefgh")
    pool.run(first, blocks=2)
    assert pool.kv.hit(request("b", "abcdefgh")) == PrefixHit(tokens=4, free_blocks=0)
    assert pool.kv.hit(request("c", "abcdefghi")) == PrefixHit(tokens=8, free_blocks=0)
    pool.end(first)
    assert pool.kv.hit(request("d", "abcdefghi")) == PrefixHit(tokens=8, free_blocks=2)


def test_a_request_that_does_not_read_the_cache_hits_nothing() -> None:
    pool = Pool(8)
    pool.run(request("a", "abcdefgh"), blocks=2)
    pool.kv.ignore_cache(RequestId("b"))
    assert pool.kv.hit(request("b", "abcdefghi")).tokens == 0
    pool.kv.forget(RequestId("b"))  # it is admitted, and may be preempted
    assert pool.kv.hit(request("b", "abcdefghi")).tokens == 0
    pool.kv.ended(RequestId("b"))
    assert pool.kv.hit(request("b", "abcdefghi")).tokens == 8


def test_the_view_names_what_would_be_evicted() -> None:
    pool = Pool(3)
    online = request("a", "abcdefgh")
    pool.run(online, blocks=2)
    pool.end(online)
    assert pool.kv.next_evicted(1) == frozenset()
    assert pool.kv.next_evicted(2) == {b"abcdefgh"}


def test_only_blocks_of_ones_own_are_released() -> None:
    pool = Pool(8)
    pool.run(request("a", "abcdefghi", offline=True), blocks=3)
    pool.run(request("b", "abcdefghj", offline=True), blocks=3)
    assert pool.kv.held_blocks(RequestId("a")) == 3
    assert pool.kv.releasable_blocks([RequestId("a")]) == 1
    assert pool.kv.releasable_blocks([RequestId("a"), RequestId("b")]) == 4
    assert pool.kv.releasable_blocks([RequestId("nobody")]) == 0


def test_a_hit_goes_on_into_the_block_in_which_two_prompts_part() -> None:
    pool = Pool(8, least_tokens=2)
    first = request("a", "abcdefghxyz.")
    pool.run(first, blocks=3)
    inside = request("b", "abcdefghxyZ!")
    assert pool.kv.hit(inside) == PrefixHit(tokens=10, free_blocks=0)
    assert ids(pool.kv.hit_blocks(inside, 10)) == [0, 1, 2]
    assert ids(pool.kv.hit_blocks(inside, 8)) == [0, 1]
    pool.end(first)
    assert pool.kv.hit(request("c", "abcdefghxyZ!")) == PrefixHit(tokens=10, free_blocks=3)
    assert pool.kv.hit(request("d", "abcdefghx!!!")).tokens == 8  # one token is not worth a copy
    assert pool.kv.hit(request("e", "abcdefghxyz.")).tokens == 11  # the last one is computed


def test_nothing_is_copied_in_front_of_the_first_whole_block() -> None:
    """Its hash tells tenants apart; the tokens alone do not."""
    pool = Pool(8, least_tokens=1)
    pool.run(request("a", "abcd"), blocks=1)
    assert pool.kv.hit(request("b", "abcx")).tokens == 0


def test_an_evicted_block_is_no_longer_copied() -> None:
    pool = Pool(3, least_tokens=2)
    first = request("a", "abcdefgh")
    pool.run(first, blocks=2)
    pool.end(first)
    waits = request("b", "abcdefg!")
    assert pool.kv.hit(waits).tokens == 7
    pool.run(request("c", "12345678"), blocks=2)  # takes the free block, then the end of the prefix
    assert pool.kv.hit(waits).tokens == 4


def test_a_block_that_shares_more_is_preferred_when_it_comes() -> None:
    pool = Pool(8, least_tokens=1)
    pool.run(request("a", "abcdef--"), blocks=2)
    waits = request("b", "abcdefgh!")
    assert pool.kv.hit(waits).tokens == 6
    pool.run(request("c", "abcdefg-"), blocks=2)
    assert pool.kv.hit(waits).tokens == 7


def test_siblings_of_a_request_that_computes_the_block_are_told_so() -> None:
    pool = Pool(8, least_tokens=2)
    leader, waits = request("a", "abcdefgh"), request("b", "abcdefg!!")
    pool.run(request("first", "abcd"), blocks=1)
    assert pool.kv.hit(waits) == PrefixHit(tokens=4, free_blocks=0)
    pool.kv.tails.leads(leader, 5)
    assert pool.kv.hit(waits) == PrefixHit(tokens=4, free_blocks=0, comes=True)
    assert not pool.kv.hit(request("c", "abcde!!!!")).comes  # one token is not worth waiting for
    pool.kv.tails.stops(leader.id)
    assert not pool.kv.hit(waits).comes
    pool.kv.tails.leads(leader, 5)
    pool.run(leader, blocks=2)
    assert pool.kv.hit(waits) == PrefixHit(tokens=7, free_blocks=0)


PROMPTS = st.text(alphabet="ab", min_size=1, max_size=14)


@given(st.lists(st.tuples(PROMPTS, st.booleans(), st.integers(0, 3)), max_size=30))
def test_kept_hits_are_always_those_that_a_fresh_look_finds(
    actions: list[tuple[str, bool, int]],
) -> None:
    pool = Pool(10, least_tokens=1)
    probes = [request(f"p{number}", "ab" * number + "b") for number in range(1, 7)]
    running: list[Request] = []
    for number, (prompt, offline, ends) in enumerate(actions):
        for _ in range(min(ends, len(running))):
            pool.end(running.pop(0))
        one = request(f"r{number}", prompt, offline=offline)
        hit = pool.kv.hit(one)
        need = -(-len(prompt) // SIZE)
        if need - hit.tokens // SIZE + hit.free_blocks <= pool.kv.free_blocks:
            pool.run(one, blocks=need)
            running.append(one)
        for probe in probes:
            kept = pool.kv.hit(probe)
            pool.kv.forget(probe.id)
            assert kept == pool.kv.hit(probe)
        pool.ledger.audit(dict(pool.tables))
        used = {block.block_id for table in pool.tables.values() for block in table}
        assert len(used) + pool.kv.free_blocks == 10
