"""When tokens are due by a TPOT objective, with and without one on TTFT. Examples are ours."""

import pytest

from tests.engine.sched.mini_engine import AsyncMiniEngine, MiniEngine, exact_model, request
from weir_engine.config import Metric, Policy, Slo
from weir_engine.request import Request
from weir_engine.sched.account import OnlineLoad
from weir_engine.sched.budget import SloBudget
from weir_engine.sched.pace import Pace
from weir_engine.sched.tpot_account import TailTpotAccount

TPOT = Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.05)
TTFT = Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0)


def decoding(*, first_s: float | None, tokens: int) -> Request:
    """It arrived at 2 s."""
    made = request("on", online=True, at=2.0, output=100)
    made.first_token_s, made.output_tokens = first_s, tokens
    made.delivered_tokens = tokens
    return made


def test_without_tpot_there_is_no_pace() -> None:
    assert Pace.of((TTFT,), from_arrival=False) is None


def test_echo_s_schedule_starts_at_arrival() -> None:
    pace = Pace.of((TTFT, TPOT), from_arrival=True)
    assert pace is not None
    assert pace.next_s(decoding(first_s=2.7, tokens=4), 3.0) == pytest.approx(2.2)


def test_it_starts_at_the_first_token_however_late_that_came() -> None:
    pace = Pace.of((TTFT, TPOT), from_arrival=False)
    assert pace is not None
    late = decoding(first_s=9.0, tokens=4)
    assert pace.next_s(late, 9.1) == pytest.approx(9.2)
    assert pace.late_s(late, 9.16) == pytest.approx(0.01)  # the fourth was due at 9.15
    assert pace.next_s(decoding(first_s=None, tokens=1), 9.1) == pytest.approx(9.15)
    assert pace.late_s(decoding(first_s=None, tokens=1), 9.1) is None


def test_as_echo_counts_a_first_token_that_came_early_leaves_time_for_the_others() -> None:
    """Latency_i = TTFT + i * TPOT (Echo §5.1); only where that is what was asked for."""
    budget = SloBudget((TTFT, TPOT), exact_model(), tpot_from_arrival=True)
    load = OnlineLoad(now_s=0.6, decoders=1, earliest_cumulative_s=0.0 + 10 * 0.05)
    assert budget.tpot_from_arrival
    # Ten tokens by 0.6 s: the eleventh is due at 1.0 + 10 * 0.05 = 1.5.
    assert budget.accounts[1].step_limit(load).seconds == pytest.approx(0.9, rel=0.01)
    assert SloBudget((TTFT, TPOT), exact_model()).accounts[1].step_limit(load).seconds == 0.0


def test_a_late_token_shortens_the_next_step_and_saved_time_never_makes_a_long_one() -> None:
    account = TailTpotAccount(TPOT, exact_model())

    def limit_s(due_s: float) -> float:
        load = OnlineLoad(now_s=1.0, decoders=1, earliest_cumulative_s=due_s)
        return account.step_limit(load).seconds

    assert limit_s(1.05) == pytest.approx(0.05, rel=0.01)
    assert limit_s(1.03) == pytest.approx(0.03, rel=0.01)
    assert limit_s(1.30) == pytest.approx(0.0525, rel=0.01)
    under_way = OnlineLoad(now_s=1.0, busy_s=0.02, decoders=1, earliest_cumulative_s=1.05)
    assert account.step_limit(under_way).seconds == pytest.approx(0.03, rel=0.01)
    behind = OnlineLoad(now_s=1.0, decoders=1, earliest_cumulative_s=0.9)
    assert account.step_limit(behind).seconds == 0.0
    assert account.prefill_limit(behind) == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize("from_arrival", [False, True])
def test_a_token_is_late_by_what_its_step_was_given_too_much(from_arrival: bool) -> None:
    pace = Pace.of((TTFT, TPOT), from_arrival=from_arrival)
    assert pace is not None
    made = decoding(first_s=2.5, tokens=4)
    due_s = pace.next_s(made, 3.0)
    made.delivered_tokens += 1
    made.output_tokens += 2  # a token is in flight behind it
    late_s = pace.late_s(made, due_s + 0.01)
    assert late_s == pytest.approx(0.01)


def mean_gap_s(engine: MiniEngine) -> float:
    """Between the tokens of an online answer, beside more offline work than there is time for."""
    online = engine.add(request("on", online=True, prompt=8, output=21))
    for number in range(40):
        engine.add(request(f"off{number}", online=False, prompt=120, output=120))
    engine.run(left=40)
    assert engine.ended == {"on": 1}
    assert online.first_token_s is not None
    assert online.last_token_s is not None
    return (online.last_token_s - online.first_token_s) / 20


@pytest.mark.parametrize("slos", [(TPOT,), (TTFT, TPOT)], ids=["tpot", "ttft-tpot"])
@pytest.mark.parametrize("engine", [MiniEngine, AsyncMiniEngine])
def test_answers_keep_their_pace(engine: type[MiniEngine], slos: tuple[Slo, ...]) -> None:
    """Also where steps are planned ahead, and where a first token came long before it was due."""
    made = engine(slos=slos, blocks=2_000, max_batched_tokens=256)
    assert 0.04 < mean_gap_s(made) <= 0.0501  # and the batch has what is left


def test_counted_from_arrival_an_answer_may_take_what_its_first_token_left() -> None:
    made = MiniEngine(
        slos=(TTFT, TPOT), blocks=2_000, max_batched_tokens=256, tpot_from_arrival=True
    )
    assert 0.08 < mean_gap_s(made) <= 0.1  # a second and twenty times 0.05, for twenty gaps


def test_what_clients_wait_besides_is_taken_off_the_pace() -> None:
    made = MiniEngine(slos=(TPOT,), blocks=2_000, max_batched_tokens=256)
    made.scheduler.set_policy(
        Policy(offline_kv_blocks=2_000, offline_seq_slots=64, client_delay_s={TPOT.name: 0.02})
    )
    assert 0.02 < mean_gap_s(made) <= 0.0301


@pytest.mark.parametrize(("engine", "busy_s"), [(MiniEngine, 0.0), (AsyncMiniEngine, 0.011)])
def test_the_step_under_way_is_taken_off_the_slack(engine: type[MiniEngine], busy_s: float) -> None:
    """It has one decode: a fixed cost and a token."""
    slos = tuple(
        Slo(metric=metric, statistic="p90", threshold_s=0.05)
        for metric in (Metric.TTFT, Metric.TPOT)
    )
    made = engine(slos=slos, preset="echo")  # nothing but the pace bounds its steps
    online = made.add(request("on", online=True, prompt=4, output=21))
    for _ in range(4):
        made.step()
    due_s = 0.05 + online.output_tokens * 0.05
    limit_s = made.scheduler.plan(made.now_s).limit_s
    assert limit_s == pytest.approx(due_s - made.now_s - busy_s, rel=0.01)


def test_a_step_that_overruns_is_still_under_way() -> None:
    """Arrivals wait for the rest of it and for the next: three times as dear as the rest alone."""
    slo = Slo(metric=Metric.TTFT, statistic="mean", threshold_s=0.3, reference_s=0.2)
    limits_s = []
    for engine in (MiniEngine, AsyncMiniEngine):
        made = engine(slos=(slo,), blocks=2_000, max_batched_tokens=256)
        made.add(request("off", online=False, prompt=1_000))
        made.step()
        made.now_s += 1.0  # far beyond what was predicted
        limit_s = made.scheduler.plan(made.now_s).limit_s
        assert limit_s is not None
        limits_s.append(limit_s)
    assert limits_s[1] == pytest.approx(limits_s[0] / 3)
