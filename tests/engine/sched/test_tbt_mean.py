"""The account of a mean of TBT: what it saves, and lets a step spend."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.sched.loads import load, slo
from weir_engine.config import Metric
from weir_engine.sched.account import StepTimes
from weir_engine.sched.tbt_account import MeanTbtAccount


def fill(account: MeanTbtAccount, *, tokens_s: int) -> None:
    """Two minutes of so many tokens a second, none delayed: as much is saved as may be."""
    for second in range(120):
        account.step_limit(load(now_s=second, decoders=1, base_s=0.01))
        for _ in range(tokens_s):
            account.on_token(0.010, offline_delay_s=0.0)
        account.on_step(StepTimes(ended_s=second + 1, duration_s=0.01, base_s=0.0, offline=False))


@given(
    reference_s=st.sampled_from([None, 0.0095, 0.01, 0.011]),
    decoders=st.integers(1, 6),
    gaps_s=st.lists(st.sampled_from([0.0, 0.004, 0.009, 0.012, 0.05]), min_size=1, max_size=8),
    delays_s=st.lists(st.sampled_from([0.0, 0.001, 0.03]), min_size=1, max_size=5),
)
def test_none_of_the_tokens_that_a_limit_promises_makes_it_another(
    reference_s: float | None, decoders: int, gaps_s: list[float], delays_s: list[float]
) -> None:
    account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01, reference_s=reference_s))
    promised, now_s = -1, 0.0
    for number in range(400):
        gap_s = gaps_s[number % len(gaps_s)]
        limit = account.step_limit(load(now_s=now_s, decoders=decoders, base_s=0.008))
        if promised >= 0:
            assert limit.seconds == 0.008
        if limit.tokens:
            assert limit.seconds == 0.008
            promised = max(promised, limit.tokens)
        for _ in range(decoders):
            account.on_token(gap_s, offline_delay_s=min(gap_s, delays_s[number % len(delays_s)]))
        now_s += gap_s
        account.on_step(StepTimes(ended_s=now_s, duration_s=gap_s, base_s=gap_s, offline=False))
        promised -= decoders


class TestMeanTbt:
    def test_steps_without_decoders_are_free(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        assert account.step_limit(load()).seconds == inf

    def test_nothing_banked_nothing_spent(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        assert account.step_limit(load(decoders=1, base_s=0.008)).seconds == 0.008

    def test_fast_tokens_are_banked_and_few_decoders_are_the_cheapest_to_delay(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        for _ in range(112):
            account.on_token(0.005, offline_delay_s=0.0)
        assert account.bank_s == pytest.approx(0.56)
        many = account.step_limit(load(decoders=4, base_s=0.008))
        one = account.step_limit(load(decoders=1, base_s=0.008))
        assert many.seconds == 0.008
        assert one.seconds > 0.008

    @pytest.mark.parametrize("usual", [1, 4, 20])
    def test_what_is_many_depends_on_how_many_decode_usually(self, usual: int) -> None:
        """Nine tenths of what may be saved are the price of as many, half that of half as many."""
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        most_s = 300 * 0.2 * 0.01
        steps = 0
        while account.bank_s < 0.8 * most_s:
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
        fill(account, tokens_s=100)
        for _ in range(20):
            account.on_token(0.030, offline_delay_s=0.0)
        assert account.step_limit(load(decoders=1, base_s=0.01)).seconds > 0.01
        for _ in range(1_000):
            account.on_token(0.030, offline_delay_s=0.0)
        assert account.step_limit(load(decoders=1, base_s=0.01)).seconds == 0.01

    def test_the_more_tokens_a_minute_has_the_longer_a_price_lasts(self) -> None:
        """Savings that every burst uses up are spent beside many, and beside few are not there."""
        lasting = []
        for tokens_s in (10, 100, 1_000):
            account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.015, reference_s=0.010))
            fill(account, tokens_s=tokens_s)
            tokens = 0
            while account.step_limit(load(decoders=1, base_s=0.01)).seconds > 0.01:
                account.on_token(0.030, offline_delay_s=0.020)
                tokens += 1
            lasting.append(tokens)
        few, usual, many = lasting
        assert 2 * few < usual
        assert 9 * usual < many < 11 * usual

    def test_what_was_cheap_with_one_decoder_does_not_go_on_with_four(self) -> None:
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.01))
        for _ in range(112):
            account.on_token(0.005, offline_delay_s=0.0)
        assert account.step_limit(load(decoders=1, base_s=0.008)).seconds > 0.008
        assert account.step_limit(load(decoders=4, base_s=0.008)).seconds == 0.008

    def test_a_minute_that_spends_all_savings_ends_at_its_slo(self) -> None:
        """What is kept of the tolerance pays for them, but for less than a percent of the SLO."""
        account = MeanTbtAccount(slo(Metric.TBT, "mean", 0.015, reference_s=0.010))
        fill(account, tokens_s=100)
        spent_s = tokens = 0.0
        while account.step_limit(load(decoders=1, base_s=0.01)).seconds > 0.01:
            account.on_token(0.030, offline_delay_s=0.020)
            spent_s, tokens = spent_s + 0.030, tokens + 1
        rest = 6_000 - tokens  # of a minute at a hundred tokens a second
        planned_s = 0.015 - 0.1 * 0.005
        assert spent_s > 1
        assert spent_s + rest * planned_s < 1.01 * 6_000 * 0.015

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
