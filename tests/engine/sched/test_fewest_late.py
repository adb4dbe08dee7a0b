"""A burst of prompts under a percentile of TTFT: the fewest are late (Moore 1968)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.sched.mini_engine import MiniEngine, request
from weir_engine.config import Metric, Policy, Slo
from weir_engine.ids import RequestId
from weir_engine.request import Request
from weir_engine.sched.fewest_late import FewestLate

TOKEN_S = 0.001


def busy() -> FewestLate:
    """One that has just seen so many requests that a hundredth of a minute's are two."""
    return seen(count=200, every_s=0.0)


def seen(*, count: int, every_s: float) -> FewestLate:
    """One for P99 within a second that has seen so many requests, the last at time 0."""
    by = FewestLate(1.0, quantile=0.99)
    for i in range(count):
        by.on_add(request(f"seen{i}", online=True, at=(i + 1 - count) * every_s))
    return by


SECOND = busy()


def prompts(*tokens: int, every_s: float = 0.0) -> list[Request]:
    """Named a, b, c and so on in the order in which they arrive."""
    return [
        request(chr(ord("a") + i), online=True, prompt=n, at=i * every_s)
        for i, n in enumerate(tokens)
    ]


def ranked(waiting: list[Request], now_s: float = 0.0, by: FewestLate = SECOND) -> str:
    order = by.order(waiting, now_s, TOKEN_S, lambda found: found.remaining_tokens)
    return "".join(found.id for found in order)


def late(order: list[Request], now_s: float = 0.0) -> int:
    """How many of a queue served in that order have waited for more than a second at their end."""
    found = 0
    for each in order:
        now_s += TOKEN_S * each.remaining_tokens
        found += now_s > each.arrival_s + 1.0
    return found


def test_first_come_first_served_where_all_are_in_time() -> None:
    assert ranked(prompts(500, 100, 300)) == "abc"


def test_the_longest_is_put_off_where_somebody_would_be_late() -> None:
    """Our example: by arrival all but a are late; without b all are in time."""
    assert ranked(prompts(300, 800, 200, 200)) == "acdb"


def test_where_few_come_nobody_is_put_off_for_what_is_a_little_late() -> None:
    """Our example: b ends after 1.2 s, or a does; a quarter more than a second is too much."""
    for few in (
        FewestLate(1.0, quantile=0.99),
        seen(count=130, every_s=0.5),
        seen(count=25, every_s=0.4),
    ):
        assert ranked(prompts(700, 500), by=few) == "ab"
        assert ranked(prompts(700, 500, 100), by=few) == "bca"
    for many in (seen(count=300, every_s=0.25), seen(count=50, every_s=0.25)):
        assert ranked(prompts(700, 500), by=many) == "ba"


def test_offline_requests_do_not_count_as_many() -> None:
    by = FewestLate(1.0, quantile=0.99)
    for i in range(500):
        by.on_add(request(f"off{i}", online=False, at=0.0))
    assert ranked(prompts(700, 500), by=by) == "ab"


def test_many_of_an_hour_ago_are_few_now() -> None:
    by = busy()
    late = prompts(700, 500)
    for each in late:
        each.arrival_s = 3_600.0
    assert ranked(late, now_s=3_600.0, by=by) == "ab"


def test_eight_jobs_of_which_two_must_be_late() -> None:
    """Our example: by due time h ends after 11 of 9, and without it g after 29 of 28."""
    tokens, due_ms = (10, 6, 3, 1, 4, 8, 7, 6), (35, 20, 11, 8, 6, 25, 28, 9)
    jobs = [
        request(name, online=True, prompt=n, at=due / 1000 - 1.0)
        for name, n, due in zip("abcdefgh", tokens, due_ms, strict=True)
    ]
    assert ranked(jobs) == "edcbgahf"


def test_one_that_is_late_in_any_case_holds_nobody_up() -> None:
    assert ranked(prompts(1_200, 300, 300)) == "bca"


def test_after_two_thresholds_it_is_put_off_no_more() -> None:
    waiting = prompts(1_200, 900, every_s=1.9)
    assert ranked(waiting, now_s=1.95) == "ba"
    assert ranked(waiting, now_s=2.05) == "ab"


def test_one_that_had_its_first_token_is_not_put_off() -> None:
    waiting = prompts(900, 300)
    waiting[0].output_tokens = 1
    assert ranked(waiting) == "ab"


def test_the_clients_delay_is_part_of_the_threshold() -> None:
    by = busy()
    assert ranked(prompts(700, 200), by=by) == "ab"
    by.set_client_delay(0.2)
    assert ranked(prompts(700, 200), by=by) == "ba"


def test_the_scheduler_hands_on_the_delay_of_the_tail_and_not_of_the_mean() -> None:
    tail = Slo(metric=Metric.TTFT, statistic="p99", threshold_s=1.0)
    mean = Slo(metric=Metric.TTFT, statistic="mean", threshold_s=0.5)

    def first(delays: dict[str, float]) -> str:
        """Steps of 26 ms with 16 tokens: 580 of them take 0.94 s, the first 400 take 0.65."""
        made = MiniEngine(slos=(tail, mean), blocks=2_000, max_batched_tokens=16)
        for number in range(300):  # enough of them that one may be late
            made.scheduler.add(request(f"old{number}", online=True, prompt=8))
            made.scheduler.abort(RequestId(f"old{number}"))
        delayed = Policy(offline_kv_blocks=0, offline_seq_slots=0, client_delay_s=delays)
        made.scheduler.set_policy(delayed)
        made.add(request("long", online=True, prompt=400))
        made.add(request("short", online=True, prompt=180))
        return made.step().work[0].request_id

    assert first({mean.name: 0.3}) == first({}) == "long"
    assert first({tail.name: 0.3}) == "short"


def test_what_is_found_in_the_cache_is_not_left() -> None:
    """A long conversation whose history is cached is as short as what it adds."""
    waiting = prompts(900, 500)
    order = SECOND.order(waiting, 0.0, TOKEN_S, lambda found: 400 if found.id == "a" else 500)
    assert [found.id for found in order] == ["a", "b"]


@given(
    st.lists(
        st.tuples(st.integers(1, 1_500), st.floats(0, 2)),
        max_size=8,
    )
)
def test_no_more_are_late_than_by_arrival(made: list[tuple[int, float]]) -> None:
    waiting = [
        request(f"r{i}", online=True, prompt=tokens, at=at) for i, (tokens, at) in enumerate(made)
    ]
    by_arrival = sorted(waiting, key=lambda found: (found.arrival_s, found.id))
    order = SECOND.order(waiting, 2.0, TOKEN_S, lambda found: found.remaining_tokens)
    assert sorted(order, key=id) == sorted(waiting, key=id)
    assert late(order, now_s=2.0) <= late(by_arrival, now_s=2.0)


def first_ended(statistic: str) -> list[str]:
    """A long prompt and three short ones; a step of 64 tokens takes 74 ms."""
    slo = Slo(metric=Metric.TTFT, statistic=statistic, threshold_s=0.2)
    engine = MiniEngine(slos=(slo,), blocks=128)
    for i, tokens in enumerate((160, 40, 40, 40)):
        engine.add(request(f"p{i}", online=True, prompt=tokens, output=1, at=i / 1000))
    engine.run()
    return list(engine.ended)


def test_a_burst_makes_its_long_prompt_late_and_no_other() -> None:
    *others, last = first_ended("p99")
    assert (sorted(others), last) == (["p1", "p2", "p3"], "p0")


def test_under_a_mean_prompts_go_by_arrival() -> None:
    assert first_ended("mean")[0] == "p0"


@pytest.mark.parametrize(("before", "expected"), [(0, ["p0", "p1"]), (40, ["p1", "p0"])])
def test_the_scheduler_counts_who_came_before(before: int, expected: list[str]) -> None:
    """The second ends after some 0.23 s of 0.2: too late only where many come."""
    engine = MiniEngine(
        slos=(Slo(metric=Metric.TTFT, statistic="p99", threshold_s=0.2),), blocks=128
    )
    for i in range(before):
        engine.add(request(f"before{i}", online=True))
        engine.abort(f"before{i}")
    for i, tokens in enumerate((150, 50)):
        engine.add(request(f"p{i}", online=True, prompt=tokens, output=1, at=i / 1000))
    engine.run()
    assert [name for name in engine.ended if name.startswith("p")] == expected


def test_in_an_overload_a_few_prompts_are_looked_at_and_not_all() -> None:
    """Half have waited for two thresholds; with two of these all of the others are late."""
    waiting = [request(f"{i:04}", online=True, prompt=600, at=i / 1000) for i in range(4_000)]
    asked: list[str] = []

    def tokens_left(found: Request) -> int:
        asked.append(found.id)
        return found.remaining_tokens

    order = SECOND.order(waiting, 4.0, TOKEN_S, tokens_left)
    assert [found.id for found in order] == [found.id for found in waiting]
    assert len(asked) == 2
