"""The virtual token counter: tenants take turns by what they were served (HyGen §4.1, VTC)."""

from tests.engine.sched.mini_engine import MiniEngine, request
from weir_engine.request import Request
from weir_engine.sched.fair_order import VtcOrder


def of(tenant: str, name: str, at: float, prompt: int = 8) -> Request:
    made = request(name, online=True, prompt=prompt, at=at)
    made.tenant = tenant
    return made


def names(requests: list[Request]) -> list[str]:
    return [found.id for found in requests]


def test_a_tenant_that_floods_waits_for_one_that_was_not_served() -> None:
    """Our example: three of tenant a came first; b's only one is served second."""
    order = VtcOrder()
    flood = [of("a", f"a{i}", at=float(i)) for i in range(3)]
    late = of("b", "b0", at=9.0)
    for each in (*flood, late):
        order.on_add(each)
    assert names(order.order([*flood, late], 10.0)) == ["a0", "b0", "a1", "a2"]


def engine(order: VtcOrder, seqs: int = 2) -> MiniEngine:
    return MiniEngine(order=order, max_seqs=seqs, max_batched_tokens=12)


def test_service_is_remembered_and_running_requests_keep_their_place() -> None:
    """After one of a was admitted and decoded, b goes before a's next although it came later."""
    order = VtcOrder()
    made = engine(order, seqs=1)
    running = made.add(of("a", "a0", at=0.0))
    waiting = [made.add(of("a", "a1", at=0.1)), made.add(of("b", "b0", at=0.2))]
    made.step()
    assert names(order.order([*waiting, running], 1.0)) == ["a0", "b0", "a1"]


def test_a_tenant_that_was_away_earns_no_credit() -> None:
    """VTC's lift: b starts at the level of the least served tenant, not at zero."""
    order = VtcOrder()
    made = engine(order)
    made.add(of("a", "a0", at=0.0, prompt=12))
    made.add(of("a", "a1", at=0.1))
    made.step()
    made.add(of("b", "b0", at=0.2, prompt=4))
    made.add(of("b", "b1", at=0.3, prompt=4))
    waiting = [r for r in made.live.values() if r.id != "a0"]
    # Were b at zero, both of its requests would go before a1.
    assert names(order.order(waiting, 1.0))[:2] == ["a1", "b0"]


def test_one_that_is_aborted_while_it_waits_leaves_its_tenant() -> None:
    order = VtcOrder()
    made = engine(order)
    made.add(of("a", "a0", at=0.0))
    made.abort("a0")
    made.add(of("b", "b0", at=0.1))
    made.add(request("off", online=False))
    made.run()
    assert made.ended == {"a0": 1, "b0": 1, "off": 1}
    assert order.order([], 1.0) == []
