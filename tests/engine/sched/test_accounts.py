"""Accounts: what an objective lets a step take, and what it learns from what steps did."""

from math import inf

import pytest

from tests.engine.sched.loads import load, slo
from tests.engine.sched.mini_engine import exact_model
from weir_engine.config import Metric
from weir_engine.errors import ConfigError
from weir_engine.sched.account import StepTimes
from weir_engine.sched.budget import SloBudget, StaticBudget
from weir_engine.sched.tbt_account import MeanTbtAccount
from weir_engine.sched.ttft_account import MeanTtftAccount
from weir_engine.sched.ttft_tail import TailTtftAccount, tail_extra_s


class TestMeanTbt:
    def test_steps_without_decoders_are_free(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        assert account.step_limit(load()).seconds == inf

    def test_nothing_banked_nothing_spent(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        assert account.step_limit(load(decoders=1, base_s=0.008)).seconds == 0.008

    def test_fast_tokens_are_banked_and_few_decoders_are_the_cheapest_to_delay(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        for _ in range(70):
            account.on_token(0.005, offline_delay_s=0.0)
        assert account.bank_s == pytest.approx(0.35)
        many = account.step_limit(load(decoders=4, base_s=0.008))
        one = account.step_limit(load(decoders=1, base_s=0.008))
        assert many.seconds == 0.008
        assert one.seconds > 0.008

    @pytest.mark.parametrize("usual", [1, 4, 20])
    def test_what_is_many_depends_on_how_many_decode_usually(self, usual: int) -> None:
        """Half of what may be saved is the price of as many, an eighth that of half as many."""
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        most_s = max(300, 24 * usual) * 0.2 * 0.01
        steps = 0
        while account.bank_s < 0.45 * most_s:
            account.step_limit(load(decoders=usual, base_s=0.008))
            account.on_step(StepTimes(ended_s=steps, duration_s=0.01, base_s=0.01, offline=False))
            for _ in range(usual):
                account.on_token(0.0099, offline_delay_s=0.0)
            steps += 1

        def spends(decoders: int) -> bool:
            return account.step_limit(load(decoders=decoders, base_s=0.008)).seconds > 0.008

        assert not spends(usual + 1)
        assert not spends(usual)
        if usual > 1:
            assert spends(usual // 2)

    def test_what_steps_pay_for_offline_work_at_all_is_paid_for_long_steps_only(self) -> None:
        """Many short ones would pay it again and again: the bank waits until it affords one."""
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.015, reference_s=0.010))
        dear = load(decoders=1, base_s=0.010, surcharge_s=0.009)
        lengths_s = []
        for _ in range(2_000):
            step_s = account.step_limit(dear).seconds
            lengths_s.append(step_s)
            account.on_token(step_s, offline_delay_s=step_s - 0.010)
        longer = [step_s for step_s in lengths_s if step_s > 0.010]
        assert min(longer) >= 0.010 + 10 * 0.009
        assert 0.014 < sum(lengths_s) / len(lengths_s) < 0.015

    def test_no_surcharge_keeps_offline_work_out_for_good(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.0105, reference_s=0.010))
        for _ in range(1_000):
            account.on_token(0.010, offline_delay_s=0.0)
        dear = load(decoders=4, base_s=0.010, surcharge_s=0.1)
        assert account.step_limit(dear).seconds > 0.010

    def test_a_known_reference_makes_bursts_of_online_traffic_neutral(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.012, reference_s=0.010))
        for _ in range(100):
            account.on_token(0.0117, offline_delay_s=0.0)
        assert account.bank_s == pytest.approx(0.0, abs=1e-9)
        for _ in range(100):
            account.on_token(0.005, offline_delay_s=0.0)
        # What the quiet time earned is there up to its tokens' share of the tolerance only.
        assert account.bank_s == pytest.approx(200 * 0.0017)

    @pytest.mark.parametrize(("tolerance", "kept"), [(0.05, 0.02625), (0.5, 0.05)])
    def test_a_narrow_tolerance_keeps_a_share_of_the_threshold(
        self, tolerance: float, kept: float
    ) -> None:
        """Machines drift by a share of their latency, however narrow the tolerance."""
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01 * (1 + tolerance), reference_s=0.01))
        for _ in range(100):
            account.on_token(0.01, offline_delay_s=0.0)
        assert account.bank_s == pytest.approx(100 * 0.01 * (tolerance - kept))

    @pytest.mark.parametrize(("work_s", "times"), [(0.0, 1), (0.5, 2), (1.0, 5)])
    def test_a_delay_is_charged_with_what_it_begets(self, work_s: float, times: float) -> None:
        """Where online work takes half of the time, who is delayed delays as much again."""
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.015, reference_s=0.010))
        for second in range(600):
            base_s = 0.01 + work_s
            account.step_limit(load(now_s=second, decoders=1, base_s=base_s))
            account.on_step(
                StepTimes(ended_s=second + 1, duration_s=base_s, base_s=base_s, offline=False)
            )
        for _ in range(100):
            account.on_token(0.010, offline_delay_s=0.0)
        before_s = account.bank_s
        account.on_token(0.013, offline_delay_s=0.003)
        spared_s = before_s / 100
        assert before_s - account.bank_s == pytest.approx(times * 0.003 - spared_s, rel=0.01)

    def test_what_quiet_times_leave_evens_out_a_burst_but_no_overload(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.015, reference_s=0.010))
        for _ in range(3_000):
            account.on_token(0.010, offline_delay_s=0.0)
        for _ in range(500):
            account.on_token(0.030, offline_delay_s=0.0)
        assert account.step_limit(load(decoders=1, base_s=0.01)).seconds > 0.01
        for _ in range(1_000):
            account.on_token(0.030, offline_delay_s=0.0)
        assert account.step_limit(load(decoders=1, base_s=0.01)).seconds == 0.01

    def test_what_was_cheap_with_one_decoder_does_not_go_on_with_four(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        for _ in range(70):
            account.on_token(0.005, offline_delay_s=0.0)
        assert account.step_limit(load(decoders=1, base_s=0.008)).seconds > 0.008
        assert account.step_limit(load(decoders=4, base_s=0.008)).seconds == 0.008

    def test_a_long_quiet_time_saves_no_more_than_a_minute_can_spend(self) -> None:
        """What is saved comes out as a mean above the SLO for as long as it lasts."""
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.015, reference_s=0.010))
        for _ in range(50_000):
            account.on_token(0.010, offline_delay_s=0.0)
        spent_s = tokens = 0.0
        while account.step_limit(load(decoders=1, base_s=0.01)).seconds > 0.01:
            account.on_token(0.030, offline_delay_s=0.020)
            spent_s, tokens = spent_s + 0.030, tokens + 1
        rest = 6_000 - tokens  # of a minute at a hundred tokens a second
        assert spent_s + rest * 0.9 * 0.015 < 6_000 * 0.015

    def test_a_measured_mean_above_the_slo_stops_the_spending(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.012, reference_s=0.010))
        for _ in range(100):
            account.on_token(0.020, offline_delay_s=0.001)
        assert account.bank_s < 0

    def test_in_debt_prompts_to_come_wait_less(self) -> None:
        """Prompts that waited for one offline step start together and slow each other's tokens."""
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.012, reference_s=0.010))
        lengths_s = [account.step_limit(load()).seconds]
        for _ in range(20):
            account.on_token(0.030, offline_delay_s=0.0)
            lengths_s.append(account.step_limit(load()).seconds)
        assert lengths_s == sorted(lengths_s, reverse=True)
        assert lengths_s[1] < 0.2
        for _ in range(200):
            account.on_token(0.030, offline_delay_s=0.0)
        assert account.step_limit(load()).seconds == pytest.approx(8 * 0.01)
        for _ in range(5000):
            account.on_token(0.010, offline_delay_s=0.0)
        assert account.step_limit(load()).seconds == inf


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
