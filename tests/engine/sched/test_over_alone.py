"""Accounts without an objective: what a step may take is a share of what online has alone."""

import pytest

from tests.engine.sched.loads import load
from tests.engine.sched.mini_engine import exact_model
from weir_engine.sched.account import OnlineLoad, StepTimes
from weir_engine.sched.budget import SloBudget
from weir_engine.sched.over_alone import TbtOverAlone, TtftOverAlone

C0_S = 0.01


def test_nothing_is_added_to_a_decoder_s_step_before_its_pace_is_known() -> None:
    account = TbtOverAlone(0.1)
    assert account.step_limit(load(decoders=1, base_s=0.02)).seconds == 0.02


def test_a_tenth_of_what_tokens_take_alone_is_there_for_offline_work() -> None:
    account = TbtOverAlone(0.1)
    for _ in range(2_000):
        account.on_token(0.02, offline_delay_s=0.0)
    assert account.step_limit(load(decoders=1, base_s=0.02)).seconds > 0.03
    spent_s = 0.0
    for _ in range(2_000):
        limit_s = account.step_limit(load(decoders=1, base_s=0.02)).seconds
        spent_s += limit_s - 0.02
        account.on_token(limit_s, offline_delay_s=limit_s - 0.02)
    # All that was saved and earned, but never more than a tenth of the tokens' own time.
    assert 0.05 * 2_000 * 0.02 < spent_s <= 0.1 * 4_000 * 0.02


@pytest.mark.parametrize("decoders", [1, 16, 40])
def test_however_many_decode_the_batch_gets_steps(decoders: int) -> None:
    account = TbtOverAlone(0.1)
    limits_s = []
    for _ in range(1_000):
        limit_s = account.step_limit(load(decoders=decoders, base_s=0.02)).seconds
        limits_s.append(limit_s)
        for _ in range(decoders):
            account.on_token(limit_s, offline_delay_s=limit_s - 0.02)
    assert 0.05 * 1_000 * 0.02 < sum(limits_s) - 1_000 * 0.02 <= 0.1 * 1_000 * 0.02


def test_traffic_that_becomes_slower_by_itself_owes_nothing() -> None:
    account = TbtOverAlone(0.1)
    for tbt_s in [0.01] * 500 + [0.03] * 3_000:
        account.on_token(tbt_s, offline_delay_s=0.0)
    assert account.bank_s > 0
    assert account.step_limit(load(decoders=1, base_s=0.03)).seconds > 0.04


def test_first_tokens_wait_for_a_share_of_what_they_take_alone() -> None:
    account = TtftOverAlone(0.1, fixed_s=C0_S)
    before_s = account.wait_s
    for _ in range(2_000):
        account.on_first_token(2.0, offline_delay_s=0.0)
    assert account.tolerance_s == pytest.approx(0.2, rel=0.01)
    assert 0 < before_s < account.wait_s < 0.2
    assert account.step_limit(load(now_s=1.0, prefills=1, base_s=0.3)).seconds == 0.3


def test_the_first_request_says_what_first_tokens_take_and_a_quiet_minute_does_not_undo_it() -> (
    None
):
    account = TtftOverAlone(0.1, fixed_s=C0_S)
    account.on_first_token(1.0, offline_delay_s=0.2)
    assert account.tolerance_s == pytest.approx(0.08)
    account.step_limit(load(now_s=1.0, decoders=1, base_s=0.01))
    account.step_limit(load(now_s=100.0))
    account.step_limit(load(now_s=101.0, decoders=1, base_s=0.01))
    assert account.tolerance_s == pytest.approx(0.08)


def test_a_slow_first_request_is_no_reference() -> None:
    """Its prompt was long, or the engine compiled: hundreds of others then waited as long."""
    account = TtftOverAlone(0.1, fixed_s=C0_S)
    account.on_first_token(20.0, offline_delay_s=0.0)
    for _ in range(8):
        account.on_first_token(0.03, offline_delay_s=0.0)
    assert account.tolerance_s < 0.1 * 0.05


def test_a_quiet_minute_takes_four_fixed_costs_a_step_and_leaves_no_debt() -> None:
    account = TtftOverAlone(0.1, fixed_s=C0_S)
    account.step_limit(load(now_s=1.0, decoders=1, base_s=0.01))
    now_s = 62.0
    for _ in range(2_000):
        limit = account.step_limit(load(now_s=now_s))
        assert limit.seconds == pytest.approx(4 * C0_S)
        now_s += limit.seconds
        account.on_step(
            StepTimes(ended_s=now_s, duration_s=limit.seconds, base_s=0.0, offline=True)
        )
    again = account.step_limit(load(now_s=now_s, decoders=1, base_s=0.01))
    assert again.seconds >= 2 * C0_S
    assert again.idle_s is None


def test_an_engine_of_which_nothing_is_known_yet_may_compute() -> None:
    account = TtftOverAlone(0.1, fixed_s=0.0)
    assert account.step_limit(OnlineLoad(now_s=100.0)).seconds > 0
    assert account.step_limit(OnlineLoad(now_s=100.0, decoders=1)).seconds > 0


def test_an_objective_takes_their_place() -> None:
    assert [type(account) for account in SloBudget((), exact_model(), over_alone=0.1).accounts] == [
        TbtOverAlone,
        TtftOverAlone,
    ]
    assert SloBudget((), exact_model()).accounts == ()
