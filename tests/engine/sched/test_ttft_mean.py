"""The account of a mean of TTFT: what an arrival can wait for."""

import pytest

from tests.engine.sched.loads import load, slo
from weir_engine.config import Metric
from weir_engine.sched.account import StepTimes
from weir_engine.sched.ttft_account import MeanTtftAccount


class TestMeanTtft:
    def test_offline_waits_while_an_online_prompt_is_there(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2, reference_s=0.1))
        limit = account.step_limit(load(prefills=1, base_s=0.03))
        assert (limit.seconds, limit.reason) == (0.03, "ttft-prefill")

    def test_length_is_twice_the_wait_that_can_be_afforded(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2, reference_s=0.1))
        assert account.step_limit(load()).seconds == pytest.approx(2 * 0.6 * 0.1)

    @pytest.mark.parametrize(("share", "spent"), [(0.2, 0.6), (0.35, 0.6), (0.7, 0.3)])
    def test_where_prompts_take_most_of_the_time_what_they_leave_of_it_is_spent(
        self, share: float, spent: float
    ) -> None:
        """Worked example: behind prompts for 0.7 of the time 1 / 0.3 requests wait for a delay."""
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2, reference_s=0.1))

        def step(start_s: float, duration_s: float, *, prompts: int) -> None:
            account.step_limit(load(now_s=start_s, prefills=prompts, base_s=duration_s))
            ended_s = start_s + duration_s
            account.on_step(
                StepTimes(ended_s=ended_s, duration_s=duration_s, base_s=duration_s, offline=False)
            )

        for second in range(600):
            step(second, share, prompts=1)
            step(second + share, 1 - share, prompts=0)
        assert account.wait_s == pytest.approx(min(0.4 * 0.2, spent * 0.1), rel=0.01)
        # A minute without online requests: nobody is behind anybody.
        account.on_first_token(0.1, offline_delay_s=0.0)
        account.step_limit(load(now_s=700.0))
        assert account.wait_s == pytest.approx(0.6 * 0.1, rel=0.01)

    @pytest.mark.parametrize(
        ("threshold_s", "spent_s"),
        [(0.1025, 0.6 * 0.0025), (0.105, 0.6 * 0.005), (0.108, 0.03 * 0.108), (0.11, 0.0045)],
    )
    def test_a_narrow_tolerance_keeps_a_twentieth_of_the_threshold(
        self, threshold_s: float, spent_s: float
    ) -> None:
        """Worked example: of 10 ms beside 110 ms 5.5 are kept, of 8 ms beside 108 only 4.76."""
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", threshold_s, reference_s=0.1))
        assert account.wait_s == pytest.approx(spent_s)

    def test_what_passes_after_a_step_of_prompts_is_not_theirs(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2, reference_s=0.1))
        for second in range(600):
            account.step_limit(load(now_s=second, prefills=1, base_s=0.3))
            ended_s = second + 0.3
            account.on_step(StepTimes(ended_s=ended_s, duration_s=0.3, base_s=0.3, offline=False))
        assert account.wait_s == pytest.approx(0.6 * 0.1)

    def test_beside_long_decodes_a_step_is_as_long_as_the_wait_pays_for(self) -> None:
        """At 0.85 of the wait, (S^2 - S0^2) / 2 S, and never below what idle steps get."""
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2, reference_s=0.1))
        idle_s = account.step_limit(load()).seconds
        few, many = (
            account.step_limit(load(decoders=5, base_s=base_s)).seconds for base_s in (0.01, 0.1)
        )
        assert few == idle_s
        assert many > idle_s
        assert (many**2 - 0.1**2) / (2 * many) == pytest.approx(0.85 * account.wait_s)

    def test_a_small_tolerance_buys_nothing_beside_long_decodes(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.104, reference_s=0.100))
        limit = account.step_limit(load(decoders=5, base_s=0.03))
        assert limit.seconds < 0.03

    def test_a_small_tolerance_is_spent_in_turns_and_says_when_again(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.104, reference_s=0.100))
        first = account.step_limit(load())
        assert first.seconds == pytest.approx(0.02)  # twice the fixed cost
        account.on_step(StepTimes(ended_s=0.02, duration_s=0.02, base_s=0.0, offline=True))
        then = account.step_limit(load(now_s=0.02))
        assert then.seconds == 0.0
        assert then.idle_s is not None
        assert then.idle_s == pytest.approx(0.02**2 / 2 / 0.0024)
        again = account.step_limit(load(now_s=0.02 + then.idle_s + 1e-6))
        assert again.seconds == pytest.approx(0.02)

    def test_overspent_tolerance_stops_offline_work(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.11, reference_s=0.10))
        for _ in range(20):
            account.on_first_token(0.2, offline_delay_s=0.1)
        account.on_step(StepTimes(ended_s=1.0, duration_s=0.02, base_s=0.0, offline=True))
        assert account.step_limit(load(now_s=1.0)).seconds == 0.0

    def test_without_a_reference_the_measured_mean_without_offline_delay_takes_its_place(
        self,
    ) -> None:
        fast, slow = (MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2)) for _ in range(2))
        for _ in range(400):
            fast.on_first_token(0.11, offline_delay_s=0.01)
            slow.on_first_token(0.3, offline_delay_s=0.0)
        assert fast.tolerance_s == pytest.approx(0.1, rel=0.05)
        assert fast.wait_s > 0.05
        assert slow.tolerance_s == 0.0
        assert slow.wait_s < 0.001

    def test_a_machine_slower_than_its_reference_leaves_less_to_spend(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.15, reference_s=0.1))
        before_s = account.wait_s
        for _ in range(300):
            account.on_first_token(0.16, offline_delay_s=0.03)  # 0.13 without offline work
        assert account.tolerance_s == pytest.approx(0.02, rel=0.1)
        assert account.wait_s < before_s / 2

    def test_the_reference_has_the_way_to_the_client_in_it(self) -> None:
        """Clients of online traffic alone see 0.1 s, 0.02 of which no engine sees."""
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.11, reference_s=0.1))
        account.set_client_delay(0.02)
        for _ in range(1000):
            account.on_first_token(0.08, offline_delay_s=0.0)
        assert account.tolerance_s == pytest.approx(0.01, rel=0.01)

    def test_fast_online_requests_earn_nothing(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.15, reference_s=0.1))
        for _ in range(300):
            account.on_first_token(0.05, offline_delay_s=0.0)
        assert account.tolerance_s == pytest.approx(0.05)

    def test_a_cold_start_is_forgotten(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2))
        for _ in range(10):
            account.on_first_token(5.0, offline_delay_s=0.0)
        assert account.wait_s == 0.0
        for _ in range(60):
            account.on_first_token(0.1, offline_delay_s=0.0)
        assert account.wait_s > 0.02

    def test_one_slow_first_token_does_not_keep_offline_work_out_all_night(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2))
        account.on_step(StepTimes(ended_s=5.0, duration_s=5.0, base_s=5.0, offline=False))
        account.on_first_token(5.0, offline_delay_s=0.0)
        account.on_step(StepTimes(ended_s=5.1, duration_s=0.1, base_s=0.0, offline=True))
        limit = account.step_limit(load(5.1))
        assert limit.seconds == 0.0
        assert limit.idle_s is not None  # it says when to ask again, and then there is something
        asked_s = 5.1
        while account.step_limit(load(asked_s)).seconds == 0.0:
            asked_s += max(account.step_limit(load(asked_s)).idle_s or 0.0, 0.001)
            assert asked_s < 120
        assert account.wait_s == MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2)).wait_s

    def test_while_online_requests_run_nothing_is_forgotten(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2))
        account.on_first_token(5.0, offline_delay_s=0.0)
        for now_s in range(600):
            account.step_limit(load(float(now_s), decoders=1, earliest_token_s=float(now_s)))
        assert account.wait_s == 0.0

    def test_an_objective_without_tolerance_lets_offline_work_go_on_in_quiet_times(self) -> None:
        """What online traffic alone takes up whole: it is not there, so nobody has to wait."""
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.1, reference_s=0.1))
        now_s, offline_s = 0.0, 0.0
        while now_s < 600:
            limit = account.step_limit(load(now_s))
            if limit.seconds > 0:
                account.on_step(
                    StepTimes(ended_s=now_s + 0.02, duration_s=0.02, base_s=0.0, offline=True)
                )
                now_s, offline_s = now_s + 0.02, offline_s + 0.02
            else:
                assert limit.idle_s  # to ask again at once would keep a core busy for nothing
                now_s += limit.idle_s + 1e-9
        assert offline_s > 30

    def test_it_waits_while_online_requests_come_more_often(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.1, reference_s=0.1))
        account.on_step(StepTimes(ended_s=0.1, duration_s=0.1, base_s=0.0, offline=True))
        for now_s in range(1, 600):
            account.step_limit(load(now_s, prefills=int(now_s % 30 == 0)))
            assert account.wait_s == 0.0

    @pytest.mark.parametrize(("after_s", "slow_s"), [(1.0, 0.13), (0.5, 0.2)])
    def test_a_machine_that_has_become_slower_leaves_nothing(
        self, after_s: float, slow_s: float
    ) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.12, reference_s=0.1))
        for number in range(1, 2_000):
            now_s = number * after_s
            account.on_step(StepTimes(ended_s=now_s, duration_s=0.01, base_s=0.01, offline=False))
            account.on_first_token(slow_s, offline_delay_s=0.0)
            assert number < 100 or account.wait_s == 0.0

    def test_an_overload_is_over_minutes_after_it_however_few_requests_come_then(self) -> None:
        """One every half minute corrected the mean in hours; no batch work ran all night."""
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.11, reference_s=0.1))
        now_s = 0.0
        for _ in range(1_000):
            now_s += 0.1
            account.on_step(StepTimes(ended_s=now_s, duration_s=0.1, base_s=0.1, offline=False))
            account.on_first_token(9.0, offline_delay_s=0.0)
        assert account.wait_s == 0.0
        for _ in range(40):
            now_s += 30.0
            account.on_step(StepTimes(ended_s=now_s, duration_s=0.01, base_s=0.01, offline=False))
            account.on_first_token(0.09, offline_delay_s=0.0)
        assert account.wait_s > 0.0

    def test_a_quiet_minute_does_not_undo_what_fast_requests_have_shown(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2))
        for _ in range(200):
            account.on_first_token(0.05, offline_delay_s=0.0)
        tolerance_s = account.tolerance_s
        account.step_limit(load(0.0, decoders=1, base_s=0.01, earliest_token_s=0.0))
        account.step_limit(load(100.0))
        assert account.tolerance_s == tolerance_s

    def test_a_pause_of_the_machine_is_no_debt_of_hours(self) -> None:
        account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.2))
        account.on_step(StepTimes(ended_s=31.0, duration_s=30.0, base_s=0.0, offline=True))
        limit = account.step_limit(load(31.0))
        assert limit.seconds == 0.0
        assert limit.idle_s is not None
        assert limit.idle_s < 10

    def test_an_old_account_answers_delays_as_a_young_one_does(self) -> None:
        waits_s = []
        for healthy in (1_000, 100_000):
            account = MeanTtftAccount(slo(Metric.TTFT, "mean", 0.12, reference_s=0.1))
            for _ in range(healthy):
                account.on_first_token(0.105, offline_delay_s=0.005)
            before_s = account.wait_s
            for _ in range(200):
                account.on_first_token(0.16, offline_delay_s=0.06)
            assert account.wait_s < before_s / 2
            waits_s.append(account.wait_s)
        assert waits_s[0] == pytest.approx(waits_s[1])
