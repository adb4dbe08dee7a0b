"""The offline pool: nothing lost, nothing twice, and the order of Algorithm 3 and of deadlines."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.engine.pool.requests import make_request, names
from weir_engine.errors import ConfigError, DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.pool.simple_orders import EdfOrder, FcfsOrder
from weir_engine.request import Request
from weir_engine.sched.selection import OfflineOrder

_URGENT_S = 10.0
_DEADLINES = st.none() | st.floats(0.0, 100.0)


def _orders(ratio: float) -> list[OfflineOrder]:
    """Each order fills the same seat."""
    rng = random.Random(1)  # noqa: S311
    pool = OfflinePool(utility_ratio=ratio, rng=rng.random, urgent_s=_URGENT_S)
    return [pool, FcfsOrder(), EdfOrder()]


class PoolMachine(RuleBasedStateMachine):
    """All orders side by side; the model is the dict of what waits."""

    @initialize(ratio=st.sampled_from([0.0, 0.3, 1.0]))
    def start(self, ratio: float) -> None:
        self.orders = _orders(ratio)
        self.waiting: dict[str, Request] = {}
        self.now_s = 0.0
        self.made = 0

    @rule(
        prompt=st.text(alphabet="ab", max_size=4),
        tenant=st.sampled_from("xyz"),
        deadline_s=_DEADLINES,
        wait_s=st.floats(0.0, 5.0),
    )
    def arrive(self, prompt: str, tenant: str, deadline_s: float | None, wait_s: float) -> None:
        self.made += 1
        self.now_s += wait_s
        request = make_request(
            f"r{self.made}",
            f"{tenant}{prompt}",
            tenant=tenant,
            deadline_s=deadline_s,
            arrival_s=self.now_s,
        )
        self.waiting[request.id] = request
        for order in self.orders:
            order.add(request)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), admitted=st.booleans())
    def leave(self, data: st.DataObject, admitted: bool) -> None:
        request_id = RequestId(data.draw(st.sampled_from(sorted(self.waiting))))
        del self.waiting[request_id]
        for order in self.orders:
            if admitted:
                order.taken(request_id)
            else:
                order.remove(request_id)

    @precondition(lambda self: self.waiting)
    @rule()
    def admit_the_first(self) -> None:
        request = self.orders[0].candidates(1, self.now_s)[0]
        del self.waiting[request.id]
        for order in self.orders:
            order.taken(request.id)

    @invariant()
    def nothing_is_lost_and_nothing_comes_twice(self) -> None:
        for order in self.orders:
            everything = order.candidates(1000, self.now_s)
            assert sorted(names(everything)) == sorted(self.waiting)
            assert len(order) == len(self.waiting)

    @invariant()
    def asking_changes_nothing(self) -> None:
        for order in self.orders:
            assert order.candidates(5, self.now_s) == order.candidates(5, self.now_s)
            assert len(order.candidates(5, self.now_s)) == min(5, len(self.waiting))

    @invariant()
    def near_deadlines_come_first(self) -> None:
        found = self.orders[0].candidates(1000, self.now_s)
        slots = [
            request.deadline_s // _URGENT_S * _URGENT_S
            for request in found
            if request.deadline_s is not None
            and request.deadline_s // _URGENT_S * _URGENT_S <= self.now_s + _URGENT_S
        ]
        first = [
            None if request.deadline_s is None else request.deadline_s // _URGENT_S * _URGENT_S
            for request in found[: len(slots)]
        ]
        assert first == sorted(slots)

    @invariant()
    def the_simple_orders_are_sorted(self) -> None:
        _, fcfs, edf = self.orders
        by_arrival = [request.arrival_s for request in fcfs.candidates(1000, self.now_s)]
        assert by_arrival == sorted(by_arrival)
        by_deadline = [
            (request.deadline_s is None, request.deadline_s or 0.0, request.arrival_s)
            for request in edf.candidates(1000, self.now_s)
        ]
        assert by_deadline == sorted(by_deadline)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def _fill(pool: OfflinePool, requests: Iterable[Request]) -> OfflinePool:
    for request in requests:
        pool.add(request)
    return pool


def _drain(pool: OfflinePool, now_s: float = 100.0) -> list[str]:
    """Admit the first candidate until nothing waits."""
    order = []
    while len(pool):
        request = pool.candidates(64, now_s)[0]
        order.append(str(request.id))
        pool.taken(request.id)
    return order


def _two_families() -> list[Request]:
    """Prompts of two families that arrive in turns."""
    prompts = {"what-ml": "WM", "code": "HC", "what-ai": "WA", "debug": "HD"}
    return [
        make_request(name, prompt, arrival_s=at)
        for at, (name, prompt) in enumerate(prompts.items())
    ]


def test_algorithm_3_with_a_utility_of_one_walks_the_tree() -> None:
    """HyGen A.2; the prompts are ours."""
    pool = _fill(OfflinePool(utility_ratio=1.0), _two_families())
    assert _drain(pool) == ["what-ml", "what-ai", "code", "debug"]


def test_algorithm_3_with_a_utility_of_zero_takes_the_stalest() -> None:
    """HyGen A.2; the prompts are ours."""
    pool = _fill(OfflinePool(utility_ratio=0.0), _two_families())
    assert _drain(pool) == ["what-ml", "code", "what-ai", "debug"]


def test_algorithm_3_chooses_by_one_draw_a_request() -> None:
    """HyGen A.2, lines 22-27: below the ratio the tree's head, else the stalest."""
    draws = iter([0.1, 0.9, 0.1, 0.9] + [0.1] * 100)
    pool = _fill(OfflinePool(utility_ratio=0.5, rng=lambda: next(draws)), _two_families())
    # the tree's head, the stalest, the tree's head in the family that was started, the stalest
    assert names(pool.candidates(64, 9.0)) == ["what-ml", "code", "what-ai", "debug"]
    pool.taken(RequestId("what-ml"))
    assert names(pool.candidates(1, 9.0)) == ["code"]
    pool.taken(RequestId("code"))
    assert names(pool.candidates(2, 9.0)) == ["what-ai", "debug"]


def test_only_what_waited_long_is_stale() -> None:
    pool = _fill(OfflinePool(utility_ratio=0.0, stale_s=10.0), _two_families())
    walk = ["what-ml", "what-ai", "code", "debug"]
    assert names(pool.candidates(64, 5.0)) == walk
    assert names(pool.candidates(64, 11.0)) == ["what-ml", "code", "what-ai", "debug"]


def test_the_stalest_waits_for_few_others_under_constant_arrivals() -> None:
    """HyGen §4.3: the utility ratio bounds starvation by those who share more."""
    rng = random.Random(5)  # noqa: S311
    pool = OfflinePool(utility_ratio=0.8, rng=rng.random)
    _fill(pool, [make_request(f"w{at}", f"w{at}", arrival_s=0.0) for at in range(3)])
    pool.taken(RequestId("w0"))
    pool.add(make_request("lonely", "Q", arrival_s=1.0))
    for at in range(200):
        pool.add(make_request(f"new{at}", f"w{at}x", arrival_s=2.0 + at))
        request = pool.candidates(64, 1000.0)[0]
        pool.taken(request.id)
        if request.id == "lonely":
            break
    assert RequestId("lonely") not in pool
    assert at < 50


def test_an_urgent_batch_comes_first_and_keeps_its_families_together() -> None:
    later = [make_request(f"l{at}", f"L{at}", deadline_s=9000.0) for at in range(2)]
    urgent = [
        make_request(name, prompt, deadline_s=1000.0)
        for name, prompt in (("a1", "A1"), ("b1", "B1"), ("a2", "A2"))
    ]
    pool = _fill(OfflinePool(urgent_s=100.0), later + urgent)
    assert names(pool.candidates(64, 950.0)) == ["a1", "a2", "b1", "l0", "l1"]
    assert names(pool.candidates(2, 950.0)) == ["a1", "a2"]


def test_tenants_take_turns_of_a_quantum() -> None:
    requests = [
        make_request(f"{tenant}{at}", f"{tenant}{at}", tenant=tenant, output_tokens=0)
        for tenant in "xy"
        for at in range(4)
    ]
    pool = _fill(OfflinePool(quantum_tokens=150.0), requests)
    assert _drain(pool) == ["x0", "x1", "y0", "y1", "y2", "y3", "x2", "x3"]


def test_a_tenant_that_cannot_run_does_not_hide_the_others() -> None:
    requests = [
        make_request(f"{tenant}{at}", f"{tenant}{at}", tenant=tenant)
        for tenant in "xyz"
        for at in range(100)
    ]
    pool = _fill(OfflinePool(), requests)
    found = pool.candidates(64, 0.0)
    assert [request.tenant for request in found] == ["x"] * 48 + ["y"] * 16


def test_one_tenants_lanes_go_by_deadline() -> None:
    requests = [
        make_request("none", "n"),
        make_request("late", "l", deadline_s=9000.0),
        make_request("soon", "s", deadline_s=5000.0),
    ]
    pool = _fill(OfflinePool(), requests)
    assert names(pool.candidates(64, 0.0)) == ["soon", "late", "none"]


@pytest.mark.parametrize("order", _orders(0.5), ids=lambda order: type(order).__name__)
def test_ids_are_checked(order: OfflineOrder) -> None:
    order.add(make_request("a", "x"))
    with pytest.raises(DuplicateRequestError, match="request a waits in the pool already"):
        order.add(make_request("a", "x"))
    with pytest.raises(UnknownRequestError, match="request b does not wait in the pool"):
        order.remove(RequestId("b"))
    with pytest.raises(UnknownRequestError, match="request b does not wait in the pool"):
        order.taken(RequestId("b"))


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"utility_ratio is 1\.5: give 0 to 1"):
        OfflinePool(utility_ratio=1.5)
    with pytest.raises(ConfigError, match=r"utility_ratio is 0\.5: give an rng"):
        OfflinePool(utility_ratio=0.5)
    with pytest.raises(ConfigError, match=r"urgent_s is 0\.0: give seconds above 0"):
        OfflinePool(urgent_s=0.0)
    with pytest.raises(ConfigError, match=r"stale_s is -1\.0: give seconds, 0 or more"):
        OfflinePool(stale_s=-1.0)
