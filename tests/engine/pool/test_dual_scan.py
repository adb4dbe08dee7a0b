"""The dual scanner in its seat: which side comes next, and what memory each holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.pool.requests import make_request, names
from weir_engine.errors import ConfigError, DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.density import partition_memory
from weir_engine.pool.dual_scan import BlendHint, DualScanOrder, Side, hint_by_lengths
from weir_engine.request import Request, RequestState

_LEFT, _RIGHT = 3.73, 0.096


def _hint(request: Request) -> BlendHint:
    left = request.id.startswith("l")
    return BlendHint(
        side=Side.LEFT if left else Side.RIGHT, density=_LEFT if left else _RIGHT, held_tokens=110.0
    )


def _scanner(left: int, right: int, *, target: float = 1.27) -> DualScanOrder:
    order = DualScanOrder(target_density=target, hint=_hint)
    for i in range(max(left, right)):
        if i < left:
            order.add(make_request(f"l{i}", "", output_tokens=20))
        if i < right:
            order.add(make_request(f"r{i}", "", output_tokens=20))
    return order


def _admit(order: DualScanOrder, request: Request) -> None:
    order.taken(request.id)
    request.move(RequestState.RUNNING)


def test_what_is_admitted_blends_to_the_target() -> None:
    """With equal requests the counts are as the memory: 19.3 of 60 from the left (Figure 5)."""
    order = _scanner(64, 64)
    for request in order.candidates(60, 0.0):
        _admit(order, request)
    held = order.held_tokens()
    part = partition_memory(60.0, left_density=_LEFT, right_density=_RIGHT, target_density=1.27)
    assert held[Side.LEFT] / sum(held.values()) * 60 == pytest.approx(part.left, abs=1.0)


@settings(deadline=None)
@given(
    left=st.integers(0, 20),
    right=st.integers(0, 20),
    target=st.floats(0.01, 8.0),
    limit=st.integers(0, 50),
)
def test_each_side_goes_in_order_and_nothing_is_lost(
    left: int, right: int, target: float, limit: int
) -> None:
    order = _scanner(left, right, target=target)
    first = names(order.candidates(limit, 0.0))
    assert len(first) == min(limit, left + right)
    assert names(order.candidates(limit, 0.0)) == first  # asking changes nothing
    for side, letter, count in ((Side.LEFT, "l", left), (Side.RIGHT, "r", right)):
        of_side = [name for name in first if name.startswith(letter)]
        assert of_side == [f"{letter}{i}" for i in range(count)][: len(of_side)]
        assert order.waiting(side) == count
    seen = []
    while len(order):
        (head,) = order.candidates(1, 0.0)
        seen.append(head.id)
        _admit(order, head)
    assert len(set(seen)) == len(seen) == left + right


def test_an_ended_request_gives_its_memory_back_to_its_side() -> None:
    order = _scanner(8, 8, target=1.9)
    first = list(order.candidates(6, 0.0))
    for request in first:
        _admit(order, request)
    ended = next(request for request in first if request.id.startswith("l"))
    before = order.held_tokens()[Side.LEFT]
    ended.move(RequestState.FINISHED)
    assert order.held_tokens()[Side.LEFT] == before - 110.0
    (after,) = order.candidates(1, 0.0)
    assert after.id.startswith("l")


def test_a_side_that_ran_dry_leaves_all_memory_to_the_other() -> None:
    order = _scanner(0, 3)
    assert names(order.candidates(8, 0.0)) == ["r0", "r1", "r2"]
    assert names(_scanner(2, 0).candidates(8, 0.0)) == ["l0", "l1"]


def test_the_target_decides_who_starts_and_can_be_changed() -> None:
    order = _scanner(2, 2, target=3.5)
    assert names(order.candidates(1, 0.0)) == ["l0"]
    order.set_target(0.2)
    assert names(order.candidates(1, 0.0)) == ["r0"]


def test_requests_are_known_once_and_leave_once() -> None:
    order = _scanner(1, 1)
    with pytest.raises(DuplicateRequestError):
        order.add(make_request("l0", ""))
    order.remove(RequestId("l0"))
    with pytest.raises(UnknownRequestError):
        order.taken(RequestId("l0"))
    assert len(order) == 1


def test_a_target_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="target_density"):
        DualScanOrder(target_density=0.0, hint=_hint)


def test_without_a_tree_a_requests_own_lengths_say_its_side() -> None:
    short = hint_by_lengths(make_request("s", "", output_tokens=10))
    unknown = hint_by_lengths(make_request("u", ""))  # at most 10 tokens of output
    long = hint_by_lengths(make_request("l", "", output_tokens=20_000))
    assert short == unknown
    assert (short.side, long.side) == (Side.LEFT, Side.RIGHT)
    assert short.held_tokens == 105.0
    assert long.density < 1.0 < short.density


def test_who_has_ended_holds_no_memory_however_many_there_were() -> None:
    order = _scanner(300, 0)
    for request in order.candidates(300, 0.0):
        _admit(order, request)
        request.move(RequestState.FINISHED)
        assert len(order._running) <= 64
    assert order.held_tokens() == {Side.LEFT: 0.0, Side.RIGHT: 0.0}
