"""Fairness among tenants: small examples of our own."""

from weir_engine.pool.fairness import VirtualTokenCounter


def _counter(*tenants: str, quantum: float = 0.0) -> VirtualTokenCounter:
    counter = VirtualTokenCounter(quantum_tokens=quantum)
    for tenant in tenants:
        counter.join(tenant)
    return counter


def _serve(counter: VirtualTokenCounter, tokens: int) -> str:
    tenant = counter.ranking()[0]
    counter.charge(tenant, prompt_tokens=tokens, output_tokens=0)
    return tenant


def test_the_least_served_goes_first() -> None:
    counter = _counter("a", "b")
    assert [_serve(counter, 10) for _ in range(4)] == ["a", "b", "b", "a"]  # even: no switch


def test_a_turn_lasts_for_the_quantum() -> None:
    counter = _counter("a", "b", quantum=25.0)
    assert "".join(_serve(counter, 10) for _ in range(12)) == "aaabbbbbbaaa"


def test_served_tokens_stay_within_a_quantum_and_a_request_of_each_other() -> None:
    counter = _counter("a", "b", "c", quantum=50.0)
    for step in range(300):
        _serve(counter, 1 + step % 20)
        served = [counter.served_tokens(tenant) for tenant in "abc"]
        assert max(served) - min(served) <= 50 + 20


def test_output_counts_double() -> None:
    counter = _counter("a", "b")
    counter.charge("a", prompt_tokens=10, output_tokens=5)
    counter.charge("b", prompt_tokens=15, output_tokens=0)
    assert counter.served_tokens("a") == 20.0
    assert counter.ranking() == ("b", "a")


def test_being_away_earns_no_credit_and_coming_back_clears_no_debt() -> None:
    counter = _counter("a", "b", "heavy")
    counter.charge("heavy", prompt_tokens=1000, output_tokens=0)
    counter.leave("heavy")
    counter.leave("b")
    for _ in range(5):
        _serve(counter, 100)
    counter.join("b")  # served nothing, but starts where the least served one stands
    assert counter.served_tokens("b") == 500.0
    counter.join("heavy")
    assert counter.served_tokens("heavy") == 1000.0
    assert counter.ranking()[-1] == "heavy"
    counter.join("new")
    assert counter.served_tokens("new") == 500.0


def test_with_nobody_waiting_nobody_has_a_turn() -> None:
    counter = _counter("a")
    counter.leave("a")
    assert counter.ranking() == ()
    assert counter.served_tokens("nobody") == 0.0
