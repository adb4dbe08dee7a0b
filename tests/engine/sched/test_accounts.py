"""Accounts: what an objective lets a step take, and what it learns from what steps did."""

from math import inf

import pytest

from tests.engine.sched.loads import load, slo
from tests.engine.sched.mini_engine import exact_model
from weir_engine.config import Metric
from weir_engine.errors import ConfigError
from weir_engine.sched.account import StepTimes
from weir_engine.sched.budget import SloBudget, StaticBudget
from weir_engine.sched.ttft_account import MeanTtftAccount
from weir_engine.sched.ttft_tail import TailTtftAccount, tail_extra_s


class TestQueuedSteps:
    """An asynchronous engine plans a step while another runs: arrivals wait for both."""

    def test_a_mean_pays_for_the_queued_step_as_a_whole(self) -> None:
        """Steps of S without online work: S^2 / 2 for the rest of one, S^2 for the next."""
        objective = slo(Metric.TTFT, "mean", 0.2, reference_s=0.1)
        between, behind = (MeanTtftAccount(objective) for _ in range(2))
        alone = between.step_limit(load()).seconds
        queued = behind.step_limit(load(busy_s=0.03)).seconds
        assert queued == pytest.approx(alone / 3)

    def test_beside_decoders_the_steps_of_online_work_alone_are_queued_too(self) -> None:
        objective = slo(Metric.TTFT, "mean", 0.2, reference_s=0.1)
        limits = [
            MeanTtftAccount(objective)
            .step_limit(load(decoders=4, base_s=0.03, busy_s=busy_s))
            .seconds
            for busy_s in (0.0, 0.03)
        ]
        assert 0.03 < limits[1] < limits[0]

    def test_a_step_behind_a_long_one_costs_a_mean_more(self) -> None:
        accounts = []
        for behind_s in (0.0, 0.05):
            account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.12, reference_s=0.1))
            for number in range(4):
                account.on_step(
                    StepTimes(
                        ended_s=0.05 * number,
                        duration_s=0.05,
                        base_s=0.01,
                        offline=True,
                        behind_s=behind_s,
                    )
                )
            accounts.append(account)
        pauses = [account.step_limit(load(now_s=0.15)).idle_s for account in accounts]
        assert pauses[0] is not None
        assert pauses[1] is not None
        assert pauses[1] > 2 * pauses[0]

    def test_a_tail_pays_for_the_queued_step_as_a_whole(self) -> None:
        at = load(decoders=4, base_s=0.03)
        extra_s = tail_extra_s(at, headroom_s=0.05, prompt_steps=2)
        queued_s = tail_extra_s(at._replace(busy_s=0.03), headroom_s=0.05, prompt_steps=2)
        assert 0 < queued_s < extra_s
        waits_s = 1.75 * queued_s * (0.03 + queued_s) / (0.01 + queued_s)
        later_s = 2 * queued_s * (0.03 - 0.01) / (0.01 + queued_s)
        assert waits_s + later_s == pytest.approx(0.05)

    def test_without_decoders_two_steps_stay_within_a_tails_headroom(self) -> None:
        account = TailTtftAccount(slo(Metric.TTFT, "p99", 1.0, reference_s=0.5))
        alone = account.step_limit(load()).seconds
        assert account.step_limit(load(busy_s=0.1)).seconds == pytest.approx(alone / 2)


class TestBudget:
    def test_the_tightest_objective_wins_and_is_named(self) -> None:
        budget = SloBudget(
            (slo(Metric.TTFT, "p99", 10.0, 2.0), slo(Metric.TBT, "p99", 0.05)), exact_model()
        )
        limit = budget.step_limit(load(decoders=1, earliest_token_s=0.0))
        assert limit.reason == "tbt-tail"
        assert budget.step_limit(load()).reason == "longest"

    def test_a_step_that_a_percentile_allows_is_not_cut_shorter(self) -> None:
        budget = SloBudget((slo(Metric.TBT, "p99", 0.5),), exact_model())
        limit = budget.step_limit(load(decoders=1, earliest_token_s=0.0))
        assert limit.seconds == pytest.approx(0.49, rel=0.01)  # a fiftieth is kept
        assert limit.reason == "tbt-tail"
        assert budget.step_limit(load()).seconds == pytest.approx(0.5)

    def test_without_objectives_a_step_still_ends(self) -> None:
        assert SloBudget((), exact_model()).step_limit(load()).seconds == pytest.approx(0.2)

    def test_client_delay_reaches_the_objective_that_it_is_of_only(self) -> None:
        tail, mean = slo(Metric.TBT, "p99", 0.1), slo(Metric.TBT, "mean", 0.1)
        budget = SloBudget((tail, mean), exact_model())
        for _ in range(300):
            budget.accounts[1].on_token(0.0, 0.0)
        before = [a.step_limit(load(decoders=1, earliest_token_s=0.0)) for a in budget.accounts]
        budget.set_client_delay({tail.name: 0.03})
        after = [a.step_limit(load(decoders=1, earliest_token_s=0.0)) for a in budget.accounts]
        assert after[0].seconds == pytest.approx(before[0].seconds - 0.03, rel=0.01)
        assert after[1] == before[1]
        assert before[1].seconds > 0.0
        budget.set_client_delay({mean.name: 0.03})
        for _ in range(1_000):
            budget.accounts[1].on_token(0.08, 0.0)
        assert budget.accounts[1].step_limit(load(decoders=1, base_s=0.01)).seconds == 0.01

    def test_prefill_always_moves(self) -> None:
        budget = SloBudget((slo(Metric.TBT, "p99", 0.05),), exact_model())
        slow = load(now_s=1.0, decoders=9, earliest_token_s=0.0, base_s=0.04)
        assert budget.prefill_limit(slow) > 0.04

    def test_the_least_prefill_makes_no_token_late_where_only_their_percentile_counts(self) -> None:
        tail = slo(Metric.TBT, "p99", 0.05)
        near = load(decoders=9, earliest_token_s=0.0, base_s=0.03)
        doubled = exact_model(residuals=(2.0,))  # so that half of the slack is planned with
        assert SloBudget((tail,), doubled).prefill_limit(near) == pytest.approx(0.033)
        # A mean would pay for prompts in small pieces.
        mean = SloBudget((tail, slo(Metric.TBT, "mean", 0.04)), doubled)
        assert mean.prefill_limit(near) == pytest.approx(0.04)

    def test_a_static_budget_is_static(self) -> None:
        assert StaticBudget(0.03).step_limit(load(decoders=7)).seconds == 0.03
        with pytest.raises(ConfigError, match="static budget is 0"):
            StaticBudget(0.0)


@pytest.mark.parametrize(
    ("statistic", "threshold_s", "message"),
    [
        ("p100", 1.0, "'mean' or 'p50' to 'p99'"),
        ("median", 1.0, "'mean' or 'p50' to 'p99'"),
        ("p99", 0.0, "slo.threshold_s is 0.0: give seconds above 0"),
        ("p99", inf, "slo.threshold_s is inf"),
    ],
)
def test_a_wrong_slo_names_the_field(statistic: str, threshold_s: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        slo(Metric.TBT, statistic, threshold_s)
