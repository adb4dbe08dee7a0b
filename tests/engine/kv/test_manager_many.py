"""Blocks of many requests at once: the same as one request after the other."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.kv.requests import make_request
from weir_engine.errors import CapacityError, InvariantError, UnknownRequestError
from weir_engine.kv.bidirectional import BidirectionalKvManager
from weir_engine.kv.manager import KvManager
from weir_engine.request import Request

SIZE = 4

Batch = list[tuple[int, bool]]
"""Tokens of each running request, and whether it is online."""


def running(kv: KvManager, batch: Batch) -> list[Request]:
    made = []
    for number, (tokens, online) in enumerate(batch):
        request = make_request(
            f"r{number}", range(tokens + 1), block_size=SIZE, online=online
        )  # equal tokens: equal hashes
        kv.allocate(request, new_tokens=tokens)
        request.computed_tokens = tokens
        kv.commit(request)
        made.append(request)
    return made


def one_by_one(kv: KvManager, requests: list[Request]) -> None:
    for request in requests:
        kv.allocate(request, new_tokens=1)
    for request in requests:
        request.computed_tokens += 1
    for request in requests:
        kv.commit(request)


def at_once(kv: KvManager, requests: list[Request]) -> None:
    kv.extend(requests)
    for request in requests:
        request.computed_tokens += 1
    kv.commit_all(requests)


@pytest.mark.parametrize("manager", [KvManager, BidirectionalKvManager])
@given(
    batch=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=12),
    cached=st.integers(0, 6),
)
@settings(max_examples=60, deadline=None)
def test_a_token_more_for_all(manager: Callable[..., KvManager], batch: Batch, cached: int) -> None:
    """Each gets the block that it would get in its turn, and the same blocks are cached."""
    found = []
    for step in (one_by_one, at_once):
        kv = manager(total_blocks=60, block_size_tokens=SIZE)
        gone = make_request("gone", [9] * SIZE * cached + [1], block_size=SIZE)
        kv.allocate(gone, new_tokens=gone.known_tokens)
        gone.computed_tokens = gone.known_tokens
        kv.commit(gone)
        kv.free(gone.id)
        requests = running(kv, batch)
        step(kv, requests)
        kv.check()
        blocks = [kv.blocks(request.id) for request in requests]
        later = make_request("later", range(20), block_size=SIZE)
        found.append((blocks, kv.usage(), kv.hit(later), kv.next_evicted(8)))
    assert found[0] == found[1]


def test_one_block_too_few_changes_nothing() -> None:
    kv = KvManager(total_blocks=5, block_size_tokens=SIZE)
    requests = running(kv, [(SIZE, True), (SIZE, False), (2 * SIZE, False)])
    before = [kv.blocks(request.id) for request in requests]
    with pytest.raises(CapacityError, match="needs 3 KV blocks and 1 of 5 are free"):
        kv.extend(requests)
    assert [kv.blocks(request.id) for request in requests] == before
    kv.extend(requests[:1])
    assert len(kv.blocks(requests[0].id)) == 2


def test_a_request_that_computed_too_much_keeps_the_others_out_of_the_cache_too() -> None:
    kv = KvManager(total_blocks=8, block_size_tokens=SIZE)
    first, second = running(kv, [(SIZE - 1, True), (SIZE - 1, False)])
    first.computed_tokens, second.computed_tokens = SIZE, SIZE + 1
    with pytest.raises(InvariantError, match="request r1 computed 5 tokens in 1 blocks of 4"):
        kv.commit_all([first, second])
    assert kv.hit(make_request("later", range(SIZE + 1), block_size=SIZE)).tokens == 0


def test_one_that_does_not_run_is_named() -> None:
    kv = KvManager(total_blocks=8, block_size_tokens=SIZE)
    stranger = make_request("stranger", range(SIZE), block_size=SIZE)
    for call in (kv.extend, kv.commit_all):
        with pytest.raises(UnknownRequestError, match="stranger"):
            call([stranger])
