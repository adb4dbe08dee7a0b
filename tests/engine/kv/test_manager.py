"""KvManager: what survives in the cache, what errors say. Examples are ours."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.kv.requests import make_request
from weir_engine.errors import (
    CapacityError,
    ConfigError,
    DuplicateRequestError,
    InvariantError,
    UnknownRequestError,
)
from weir_engine.ids import RequestClass, RequestId
from weir_engine.kv.eviction import ClassedEviction, EvictionPolicy, LruEviction
from weir_engine.kv.manager import KvManager
from weir_engine.kv.view import PrefixHit
from weir_engine.request import Request

_BLOCK = 16


def _manager(total: int, eviction: EvictionPolicy | None = None, guard: int = 0) -> KvManager:
    return KvManager(
        total_blocks=total, block_size_tokens=_BLOCK, eviction=eviction, guard_blocks=guard
    )


def _prompt(family: int, tokens: int, tail: int = 0) -> list[int]:
    return [family] * (tokens - 1) + [1000 + tail]


def _request(name: str, tokens: list[int], *, online: bool = False) -> Request:
    return make_request(name, tokens, block_size=_BLOCK, online=online)


def _prefill(kv: KvManager, request: Request) -> PrefixHit:
    hit = kv.hit(request)
    kv.allocate(request, new_tokens=request.known_tokens - hit.tokens, hit=hit)
    request.computed_tokens = request.known_tokens
    kv.commit(request)
    return hit


def _run(kv: KvManager, request: Request) -> PrefixHit:
    hit = _prefill(kv, request)
    kv.free(request.id)
    return hit


@pytest.mark.parametrize(
    ("eviction", "kept_tokens"), [(ClassedEviction(), 304), (LruEviction(), 0)]
)
def test_a_conversation_outlives_batch_churn(eviction: EvictionPolicy, kept_tokens: int) -> None:
    """Six batch prompts pass; of 320 online tokens the next turn finds 304, under LRU none."""
    kv = _manager(64, eviction)
    conversation = _prompt(1, 320)
    _run(kv, _request("turn-1", conversation, online=True))
    for at in range(6):
        _run(kv, _request(f"line-{at}", _prompt(100 + at, 320)))
    assert kv.hit(_request("turn-2", conversation, online=True)).tokens == kept_tokens


@given(
    churn=st.lists(st.tuples(st.integers(2, 4), st.integers(1, 44 * _BLOCK)), max_size=12),
)
@settings(max_examples=50, deadline=None)
def test_offline_churn_never_evicts_online_while_it_fits_beside_it(
    churn: list[tuple[int, int]],
) -> None:
    """Echo §4.2: finished online work outlives finished offline work that nobody waits for."""
    kv = _manager(64)
    conversation = _prompt(1, 320)
    _run(kv, _request("turn-1", conversation, online=True))
    for at, (family, tokens) in enumerate(churn):
        _run(kv, _request(f"line-{at}", _prompt(family, tokens, tail=at)))
    assert kv.hit(_request("turn-2", conversation, online=True)).tokens == 304


def test_wanted_documents_outlive_conversations_unless_guarded() -> None:
    """Echo keeps what waiting requests want; the guard keeps the last conversations first."""
    found = {}
    for guard in (0, 20):
        kv = _manager(64, ClassedEviction(guard_online=True), guard)
        document, conversation = _prompt(5, 640), _prompt(1, 320)
        kv.expect(_request("later", document))
        _run(kv, _request("line", document))
        _run(kv, _request("turn-1", conversation, online=True))
        _run(kv, _request("burst", _prompt(6, 20 * _BLOCK), online=False))
        found[guard] = (
            kv.hit(_request("turn-2", conversation, online=True)).tokens,
            kv.hit(_request("again", document)).tokens,
        )
    assert found == {0: (80, 624), 20: (304, 384)}


def test_six_blocks_with_and_without_a_threshold() -> None:
    """Echo fig. 5, on a table of our own: with a threshold no useful prefix is evicted."""
    found = {}
    for threshold in (6, 2):
        kv = _manager(6)
        wanted = _prompt(1, 2 * _BLOCK + 1)
        _prefill(kv, _request("online", _prompt(2, _BLOCK), online=True))
        kv.expect(_request("sibling", wanted))
        _run(kv, _request("leader", wanted))  # leaves 2 blocks that the sibling wants
        offline = _request("offline", _prompt(3, 3 * _BLOCK))
        if min(threshold - kv.offline_only_blocks, kv.free_blocks) >= 3:
            _prefill(kv, offline)
        _run(kv, _request("arrival", _prompt(4, 2 * _BLOCK), online=True))
        found[threshold] = kv.hit(_request("sibling", wanted)).tokens
    assert found == {6: 0, 2: 2 * _BLOCK}


def test_the_end_of_a_prefix_is_evicted_before_its_start() -> None:
    kv = _manager(10)
    document = _prompt(1, 5 * _BLOCK)
    _run(kv, _request("line", document))
    _run(kv, _request("other", _prompt(2, 7 * _BLOCK)))
    assert kv.hit(_request("again", document)).tokens == 3 * _BLOCK


def test_a_block_that_online_adopts_counts_as_onlines_until_it_is_free() -> None:
    """Design §9, KV by class."""
    kv = _manager(8)
    shared = _prompt(1, 3 * _BLOCK)
    _prefill(kv, _request("line", shared))
    assert kv.offline_only_blocks == 3
    _prefill(kv, _request("turn", shared, online=True))  # 2 of 3 blocks are hit
    assert kv.offline_only_blocks == 1
    kv.free(RequestId("turn"))
    assert kv.offline_only_blocks == 1  # the end of an online request adds nothing to offline
    kv.free(RequestId("line"))
    _prefill(kv, _request("again", shared))
    assert kv.offline_only_blocks == 3


def test_a_block_that_online_adopts_stays_onlines_until_its_hash_is_reset() -> None:
    """Design §9, KV by class: adopted blocks outlive younger ones of offline only."""
    kv = _manager(6)
    shared, private = _prompt(1, 2 * _BLOCK + 1), _prompt(2, 2 * _BLOCK + 1)
    _run(kv, _request("line", shared))
    _run(kv, _request("turn", shared, online=True))
    _run(kv, _request("other", private))
    _run(kv, _request("churn", _prompt(3, 4 * _BLOCK)))
    assert kv.hit(_request("turn-2", shared, online=True)).tokens == 2 * _BLOCK
    assert kv.hit(_request("again", private)).tokens == 0


def test_a_preempted_request_keeps_its_blocks_longer_than_finished_online_ones() -> None:
    """Echo §4.2: it is waiting for them; its own end or a cancellation ends that."""
    found = {}
    for cancelled in (False, True):
        kv = _manager(6)
        request = _request("line", _prompt(1, 2 * _BLOCK + 1))
        _prefill(kv, request)
        kv.preempt(request)
        _run(kv, _request("turn", _prompt(2, 2 * _BLOCK + 1), online=True))
        if cancelled:
            kv.free(request.id)
        _run(kv, _request("arrival", _prompt(3, 4 * _BLOCK), online=True))
        found[cancelled] = kv.hit(request).tokens
    assert found == {False: 2 * _BLOCK, True: 0}


def test_an_admission_ends_the_count_of_the_waiting_request() -> None:
    kv = _manager(4)
    request = _request("line", _prompt(1, 2 * _BLOCK))
    kv.expect(request)
    _prefill(kv, request)
    kv.expect(request)  # not counted any more, so it can be counted again
    with pytest.raises(DuplicateRequestError):
        kv.expect(request)


def test_news_of_a_waiting_request_changes_what_is_evicted_next() -> None:
    kv = _manager(4)
    first, second = _request("a", _prompt(1, 2 * _BLOCK)), _request("b", _prompt(2, 2 * _BLOCK))
    _run(kv, first)
    _run(kv, second)
    assert kv.next_evicted(1) == {first.block_hashes[1]}
    kv.expect(_request("c", _prompt(1, 2 * _BLOCK, tail=1)))
    assert kv.next_evicted(1) == {first.block_hashes[1]}  # its first block alone is wanted
    assert kv.next_evicted(2) == {first.block_hashes[1], second.block_hashes[1]}


def test_hashes_are_matched_only_once_computed() -> None:
    kv = _manager(8)
    leader, sibling = _request("a", _prompt(1, 4 * _BLOCK)), _request("b", _prompt(1, 4 * _BLOCK))
    kv.allocate(leader, new_tokens=40)
    assert kv.hit(sibling).tokens == 0
    leader.computed_tokens = 40
    kv.commit(leader)
    assert kv.hit(sibling) == PrefixHit(tokens=2 * _BLOCK, free_blocks=0)
    kv.preempt(leader)
    assert kv.hit(sibling) == PrefixHit(tokens=2 * _BLOCK, free_blocks=2)


def test_finding_ones_own_blocks_after_preemption_is_no_hit() -> None:
    """Design §3, rule 6."""
    kv = _manager(8)
    request = _request("a", _prompt(1, 4 * _BLOCK))
    _prefill(kv, request)
    kv.preempt(request)
    request.preemptions += 1
    _prefill(kv, request)
    counts = kv.hit_counts(RequestClass.OFFLINE)
    assert (counts.asked_tokens, counts.hit_tokens) == (4 * _BLOCK, 0)
    assert counts.resumed_tokens == 3 * _BLOCK


def test_a_hit_is_kept_from_what_is_allocated_before_its_admission() -> None:
    """The only two blocks that are worth something are given back, and asked for, in one step."""
    kv = _manager(6)
    leaves = _request("leaves", _prompt(1, 32))
    _prefill(kv, leaves)
    later = _request("later", [*_prompt(1, 32), *[5] * 16], online=True)
    hit = kv.hit(later)
    assert hit.tokens == 32
    kv.free(leaves.id)
    kv.keep(later, hit)
    assert kv.free_blocks == 4
    with pytest.raises(CapacityError):
        kv.allocate(_request("first", _prompt(2, 80)), new_tokens=80)
    kv.allocate(_request("first", _prompt(2, 48)), new_tokens=48)
    with pytest.raises(CapacityError):
        kv.allocate(later, new_tokens=32, hit=hit)
    assert kv.allocate(later, new_tokens=16, hit=hit) == 3
    kv.check()
    assert kv.free_blocks == 0


def test_a_hit_that_is_not_there_cannot_be_kept() -> None:
    kv = _manager(6)
    with pytest.raises(InvariantError, match="find 1 cached blocks and found 0"):
        kv.keep(_request("online", _prompt(1, 32)), PrefixHit(tokens=16, free_blocks=1))


def test_what_no_longer_waits_is_not_kept() -> None:
    kv = _manager(4)
    wanted, other = _prompt(1, 2 * _BLOCK), _prompt(2, 2 * _BLOCK)
    kv.expect(_request("later", wanted))
    _run(kv, _request("line", wanted))
    _run(kv, _request("turn", other, online=True))
    kv.forget(RequestId("later"))
    _run(kv, _request("churn", _prompt(3, 2 * _BLOCK)))
    assert kv.hit(_request("a", wanted)).tokens == 0
    assert kv.hit(_request("b", other, online=True)).tokens == _BLOCK


def test_errors_hold_the_numbers() -> None:
    kv = _manager(4)
    running = _request("a", _prompt(1, 3 * _BLOCK))
    _prefill(kv, running)
    with pytest.raises(CapacityError, match="request b needs 2 KV blocks and 1 of 4 are free"):
        kv.allocate(_request("b", _prompt(2, 2 * _BLOCK)), new_tokens=2 * _BLOCK)
    with pytest.raises(InvariantError, match="request c was to find 3 cached blocks and found 2"):
        kv.allocate(
            _request("c", _prompt(1, 4 * _BLOCK)),
            new_tokens=1,
            hit=PrefixHit(tokens=3 * _BLOCK, free_blocks=0),
        )
    with pytest.raises(InvariantError, match="request a holds 3 blocks and states a hit"):
        kv.allocate(running, new_tokens=1, hit=PrefixHit(tokens=_BLOCK, free_blocks=0))
    with pytest.raises(UnknownRequestError, match="request d holds no KV blocks"):
        kv.preempt(_request("d", _prompt(1, 1)))
    running.computed_tokens = 4 * _BLOCK
    with pytest.raises(InvariantError, match="request a computed 64 tokens in 3 blocks of 16"):
        kv.commit(running)
    waiting = _request("e", _prompt(1, 1))
    kv.expect(waiting)
    with pytest.raises(DuplicateRequestError, match="request e is already counted"):
        kv.expect(waiting)
    kv.check()
    with pytest.raises(ConfigError, match="total_blocks and block_size_tokens must be 1 or more"):
        _manager(0)


def test_the_guard_can_be_changed_while_running() -> None:
    kv = _manager(8, ClassedEviction(guard_online=True), guard=4)
    kv.expect(_request("later", _prompt(1, 4 * _BLOCK + 1)))
    _run(kv, _request("line", _prompt(1, 4 * _BLOCK + 1)))
    turn = _prompt(2, 3 * _BLOCK + 1)
    _run(kv, _request("turn-1", turn, online=True))
    kv.set_guard(0)
    _run(kv, _request("arrival", _prompt(3, 4 * _BLOCK), online=True))
    assert kv.hit(_request("turn-2", turn, online=True)).tokens == 0
    assert kv.hit(_request("later", _prompt(1, 4 * _BLOCK + 1))).tokens == 4 * _BLOCK


def test_next_evicted_names_what_an_allocation_would_cost() -> None:
    kv = _manager(4)
    first, second = _request("a", _prompt(1, _BLOCK)), _request("b", _prompt(2, _BLOCK))
    _run(kv, first)
    _run(kv, second)
    assert kv.next_evicted(2) == frozenset()
    assert kv.next_evicted(3) == frozenset(first.block_hashes)
    assert kv.next_evicted(9) == frozenset(first.block_hashes + second.block_hashes)


def test_sizes_and_ids_are_answered_for_requests_that_hold_nothing() -> None:
    kv = _manager(4)
    assert (kv.total_blocks, kv.block_size_tokens) == (4, _BLOCK)
    assert kv.blocks(RequestId("none")) == ()
    assert kv.held_blocks(RequestId("none")) == kv.releasable_blocks([RequestId("none")]) == 0
    assert kv.free(RequestId("none")) == 0
