"""The account of a percentile of TBT: what it lets a step take, and prompts beside decoders."""

from math import inf

import pytest

from tests.engine.sched.loads import load, slo
from tests.engine.sched.mini_engine import exact_model
from weir_engine.config import Metric, Slo
from weir_engine.latency.features import EMPTY_SHAPE
from weir_engine.sched.account import StepTimes
from weir_engine.sched.tbt_tail import TailTbtAccount

KEPT_S = 0.002  # of a threshold of 0.1 s


def late_steps(account: TailTbtAccount, *, steps: int, offline_delay_s: float) -> None:
    """Steps whose only token comes 0.12 s after the one before."""
    for number in range(steps):
        account.on_token(0.12, offline_delay_s=offline_delay_s)
        account.on_step(
            StepTimes(ended_s=number * 0.12, duration_s=0.12, base_s=0.04, offline=True)
        )


def test_the_decoder_that_waits_longest_sets_the_limit() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model())
    limit = account.step_limit(load(now_s=5.03, decoders=2, earliest_token_s=5.0))
    assert limit.seconds == pytest.approx(0.1 - KEPT_S - 0.03, rel=0.01)
    assert limit.reason == "tbt-tail"


def test_no_decoder_no_limit() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model())
    assert account.step_limit(load()).seconds == inf


def test_measured_lateness_shrinks_the_limit_unless_it_was_paid_for() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model())
    busy = load(decoders=1, earliest_token_s=0.0)
    before = account.step_limit(busy).seconds
    late_steps(account, steps=5, offline_delay_s=0.08)
    assert account.step_limit(busy).seconds < before
    fair = TailTbtAccount(
        slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True
    )  # a whole prefill made these late, and its credit paid for them
    before = fair.step_limit(busy).seconds
    late_steps(fair, steps=5, offline_delay_s=0.0)
    assert fair.step_limit(busy).seconds >= before


def limit_after_lateness(*, prompts_late: int) -> float:
    """After so many tokens late by whole prefills, then three by offline work and 1,000 in time."""
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True)
    late_steps(account, steps=prompts_late, offline_delay_s=0.0)
    late_steps(account, steps=3, offline_delay_s=0.08)
    for _ in range(1_000):
        account.on_token(0.05, offline_delay_s=0.0)
        account.on_step(StepTimes(ended_s=0.0, duration_s=0.05, base_s=0.04, offline=False))
    return account.step_limit(load(decoders=1, earliest_token_s=0.0)).seconds


def test_where_prompts_have_used_the_tail_offline_work_gets_less_of_it() -> None:
    """Their late tokens and those of packed steps are one percentile: both shares were spent."""
    assert limit_after_lateness(prompts_late=40) < limit_after_lateness(prompts_late=0) < 0.095


@pytest.mark.parametrize(("whole_prefill", "most_s"), [(False, 0.098), (True, 0.095)])
def test_packed_steps_keep_a_margin_and_a_wider_one_where_prompts_need_the_late_tokens(
    whole_prefill: bool, most_s: float
) -> None:
    account = TailTbtAccount(
        slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=whole_prefill
    )
    for _ in range(5_000):
        account.on_token(0.01, offline_delay_s=0.005)
        account.on_step(StepTimes(ended_s=0.0, duration_s=0.01, base_s=0.01, offline=False))
    assert account.step_limit(load(decoders=1, earliest_token_s=0.0)).seconds == pytest.approx(
        most_s
    )


@pytest.mark.parametrize(("reference_s", "kept_s"), [(None, 0.002), (0.05, 0.002), (0.095, 0.001)])
def test_the_margin_takes_a_fifth_of_a_narrow_tolerance_at_most(
    reference_s: float | None, kept_s: float
) -> None:
    def limit_s(reference_s: float | None) -> float:
        objective = Slo(
            metric=Metric.TBT, statistic="p99", threshold_s=0.1, reference_s=reference_s
        )
        account = TailTbtAccount(objective, exact_model())
        return account.step_limit(load(decoders=1, earliest_token_s=0.0)).seconds

    no_tolerance_s = limit_s(0.1)
    assert no_tolerance_s - limit_s(reference_s) == pytest.approx(kept_s, rel=0.01)


def test_tokens_within_the_margin_count_as_late() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model())
    busy = load(decoders=1, earliest_token_s=0.0)
    before = account.step_limit(busy).seconds
    account.on_token(0.099, offline_delay_s=0.05)
    account.on_step(StepTimes(ended_s=0.0, duration_s=0.099, base_s=0.04, offline=True))
    assert account.step_limit(busy).seconds < before


def test_what_is_kept_before_the_deadline_counts_as_late_where_offline_work_uses_it() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True)
    busy = load(decoders=1, earliest_token_s=0.0)
    before = account.step_limit(busy).seconds
    for tbt_s, limit_s in ((0.094, before), (0.097, before * 0.96)):
        account.on_token(tbt_s, offline_delay_s=0.05)
        account.on_step(StepTimes(ended_s=0.0, duration_s=tbt_s, base_s=0.04, offline=True))
        assert account.step_limit(busy).seconds == pytest.approx(limit_s, rel=0.001)


def test_never_plans_a_late_token_however_good_the_tail() -> None:
    """A percentile spends its allowance on measured room only (design §9)."""
    account = TailTbtAccount(slo(Metric.TBT, "p90", 0.1), exact_model())
    for _ in range(5_000):
        account.on_token(0.01, offline_delay_s=0.005)
    assert account.step_limit(load(decoders=1, earliest_token_s=0.0)).seconds <= 0.1


def test_a_pause_in_a_short_step_does_not_make_all_steps_short() -> None:
    model = exact_model()
    for tokens in range(1, 40):
        model.update(EMPTY_SHAPE.with_prefill(tokens, 0), 0.2)
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), model)
    assert account.prefill_limit(load(decoders=1, earliest_token_s=0.0)) >= (0.1 - KEPT_S) / 2


def test_whole_prefill_is_paid_from_the_allowed_late_tokens() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True)
    few = load(decoders=1, earliest_token_s=0.0)
    assert account.prefill_limit(few) == inf
    for _ in range(3):
        account.on_token(0.5, offline_delay_s=0.0)
    assert account.prefill_limit(few) < 0.1 + 1e-9
    for _ in range(1_000):
        account.on_token(0.01, offline_delay_s=0.0)
    assert account.prefill_limit(few) == inf


def test_an_overload_is_paid_back_within_minutes() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True)
    for _ in range(100_000):
        account.on_token(0.3, offline_delay_s=0.0)
    for _ in range(40_000):  # forty seconds of a busy engine
        account.on_token(0.05, offline_delay_s=0.0)
    assert account.prefill_limit(load(decoders=1, earliest_token_s=0.0)) == inf


@pytest.mark.parametrize(("decoders", "most"), [(1, 4), (2, 8), (16, 64)])
def test_a_quiet_hour_saves_few_late_tokens_for_each_decoder(decoders: int, most: int) -> None:
    """A percentile is of some minutes: the credit of an hour would miss it in one of them."""
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True)
    busy = load(decoders=decoders, earliest_token_s=0.0)
    account.step_limit(busy)
    for _ in range(100_000):
        account.on_token(0.01, offline_delay_s=0.0)
    late = 0
    while account.prefill_limit(busy) == inf:
        late += decoders
        for _ in range(decoders):
            account.on_token(0.5, offline_delay_s=0.0)
    assert late == most


def test_prompts_too_late_in_chunks_overdraw_the_credit() -> None:
    account = TailTbtAccount(
        slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True, ttft_tail_s=1.0
    )
    late = {"decoders": 1, "earliest_token_s": 3.0, "earliest_arrival_s": 3.0}
    for _ in range(6):
        account.on_token(0.5, offline_delay_s=0.0)
    assert account.prefill_limit(load(now_s=3.0, prompts_s=0.9, **late)) <= 0.1
    assert account.prefill_limit(load(now_s=3.0, prompts_s=1.1, **late)) == inf
    assert account.prefill_limit(load(now_s=3.05, prompts_s=0.96, **late)) == inf
    for _ in range(20):
        account.on_token(0.5, offline_delay_s=0.0)
    assert account.prefill_limit(load(now_s=3.0, prompts_s=1.1, **late)) <= 0.1


@pytest.mark.parametrize(("decoders", "least"), [(1, -8), (16, -64)])
def test_the_overdraft_ends_with_some_late_tokens_for_each_decoder(
    decoders: int, least: int
) -> None:
    account = TailTbtAccount(
        slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True, ttft_tail_s=1.0
    )
    late = {"decoders": decoders, "earliest_token_s": 3.0, "earliest_arrival_s": 3.0}
    credit = 2.0
    while account.prefill_limit(load(now_s=3.0, prompts_s=1.1, **late)) == inf:
        account.on_token(0.5, offline_delay_s=0.0)
        credit += 0.0075 - 1
    assert credit - decoders < least <= credit - decoders + 1


def test_late_tokens_before_leave_prompts_what_the_deadline_allows() -> None:
    """Online's own bursts make tokens late too, and shorter chunks would not have helped."""
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model())
    late_steps(account, steps=50, offline_delay_s=0.0)
    busy = {"decoders": 20, "earliest_token_s": 0.0}
    assert account.step_limit(load(base_s=0.07, **busy)).seconds == pytest.approx(
        (0.1 - KEPT_S) / 2, rel=0.01
    )
    assert account.prefill_limit(load(base_s=0.07, **busy)) == pytest.approx(0.08)
    assert 0.09 < account.prefill_limit(load(base_s=0.095, **busy)) <= 0.1


def test_where_chunks_go_on_being_late_prompts_run_whole() -> None:
    """Each chunk is late where decodes leave no room: a whole prompt is so once."""
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model())
    busy = {"decoders": 3, "earliest_token_s": 0.0}
    late_steps(account, steps=12, offline_delay_s=0.0)
    assert account.prefill_limit(load(base_s=0.095, **busy)) < 0.1
    late_steps(account, steps=12, offline_delay_s=0.0)
    assert account.prefill_limit(load(base_s=0.095, **busy)) == inf
    assert account.prefill_limit(load(base_s=0.085, **busy)) < 0.1  # a chunk is in time
    for _ in range(2_000):
        account.on_token(0.05, offline_delay_s=0.0)
    assert account.prefill_limit(load(base_s=0.095, **busy)) < 0.1


def test_a_debt_is_deep_however_many_decoders_there_are() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model())
    late_steps(account, steps=250, offline_delay_s=0.0)
    assert account.prefill_limit(load(base_s=0.095, decoders=250, earliest_token_s=0.0)) == inf


def test_with_an_objective_on_ttft_prompts_run_whole_where_no_chunk_is_in_time() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model(), whole_prefill=True)
    late_steps(account, steps=50, offline_delay_s=0.0)
    busy = {"decoders": 3, "earliest_token_s": 0.0}
    assert account.prefill_limit(load(base_s=0.085, **busy)) <= 0.1
    assert account.prefill_limit(load(base_s=0.095, **busy)) == inf


def test_client_delay_lowers_the_threshold() -> None:
    account = TailTbtAccount(slo(Metric.TBT, "p99", 0.1), exact_model())
    account.set_client_delay(0.02)
    limit = account.step_limit(load(decoders=1, earliest_token_s=0.0))
    assert limit.seconds == pytest.approx(0.08 - KEPT_S, rel=0.01)
