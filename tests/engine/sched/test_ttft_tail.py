"""The account of a percentile of TTFT: what it lets a step take, and what it learns."""

from functools import partial

import pytest

from tests.engine.sched.loads import load, slo
from weir_engine.config import Metric
from weir_engine.sched.ttft_tail import TailTtftAccount, tail_extra_s


class TestTailTtft:
    def test_before_the_first_token_a_step_full_of_prompts_says_what_is_left(self) -> None:
        objective = slo(Metric.TTFT, "p90", 1.0)
        limits_s = [
            TailTtftAccount(objective, prompt_step_s=partial(float, seconds))
            .step_limit(load())
            .seconds
            for seconds in (0.1, 0.7, 2.0)
        ]
        # Never more than two fifths of the objective, and something even where prompts take it all.
        assert limits_s == pytest.approx([0.4, 0.3, 0.05])

    def test_with_nothing_known_at_all_offline_work_costs_little(self) -> None:
        account = TailTtftAccount(slo(Metric.TTFT, "p90", 1.0))
        assert account.step_limit(load()).seconds == pytest.approx(0.05)

    def test_headroom_is_the_threshold_less_the_tail_without_offline_work(self) -> None:
        account = TailTtftAccount(slo(Metric.TTFT, "p99", 1.0))
        for _ in range(50):
            account.on_first_token(0.9, offline_delay_s=0.1)
        assert account.step_limit(load()).seconds == pytest.approx(0.2, rel=0.01)

    def test_the_last_four_hundred_requests_make_the_tail(self) -> None:
        def limit_s(slow: int, fast: int) -> float:
            account = TailTtftAccount(slo(Metric.TTFT, "p99", 1.0))
            for ttft_s, count in ((0.95, slow), (0.8, fast)):
                for _ in range(count):
                    account.on_first_token(ttft_s, offline_delay_s=0.0)
            return account.step_limit(load()).seconds

        assert limit_s(40, 390) < 0.5 * limit_s(0, 400)
        assert limit_s(40, 400) == pytest.approx(limit_s(0, 400))

    @pytest.mark.parametrize(
        ("reference_s", "spent_s"), [(0.96, 0.65 * 0.04), (0.92, 0.04), (0.9, 0.05), (0.7, 0.25)]
    )
    def test_part_of_a_known_tolerance_is_kept(self, reference_s: float, spent_s: float) -> None:
        """5% of the threshold, for what moves the slowest requests; of a narrow one a third."""
        account = TailTtftAccount(slo(Metric.TTFT, "p99", 1.0, reference_s=reference_s))
        assert account.step_limit(load()).seconds == pytest.approx(spent_s)

    def test_never_below_a_step_worth_its_fixed_cost(self) -> None:
        account = TailTtftAccount(slo(Metric.TTFT, "p99", 1.0, reference_s=1.0))
        assert account.step_limit(load()).seconds == pytest.approx(0.02)

    def test_a_minute_without_online_requests_ends_an_overload(self) -> None:
        """Steps of two fixed costs all night, of which half is waste."""
        account = TailTtftAccount(slo(Metric.TTFT, "p90", 1.0))
        before_s = account.step_limit(load(0.0)).seconds
        account.step_limit(load(1.0, prefills=1))
        for _ in range(60):
            account.on_first_token(5.0, offline_delay_s=0.1)
        assert account.step_limit(load(2.0)).seconds == pytest.approx(0.02)
        assert account.step_limit(load(60.0)).seconds == pytest.approx(0.02)
        assert account.step_limit(load(61.0)).seconds == before_s

    def test_a_minute_without_them_does_not_undo_what_fast_ones_have_shown(self) -> None:
        account = TailTtftAccount(slo(Metric.TTFT, "p90", 1.0))
        account.step_limit(load(1.0, decoders=1, earliest_token_s=1.0))
        for _ in range(60):
            account.on_first_token(0.7, offline_delay_s=0.0)
        before_s = account.step_limit(load(2.0)).seconds
        assert account.step_limit(load(100.0)).seconds == before_s > 0.2

    def test_a_pause_of_the_machine_is_no_evidence_against_planning(self) -> None:
        """Each of those that came in it counted; thousands of fast ones had to make up for it."""
        account = TailTtftAccount(slo(Metric.TTFT, "p99", 1.0, reference_s=0.5))
        before_s = account.step_limit(load()).seconds
        for _ in range(30):
            account.on_first_token(9.0, offline_delay_s=8.9)
        assert account.step_limit(load()).seconds == pytest.approx(before_s)

    def test_requests_that_offline_work_made_late_shrink_the_limit(self) -> None:
        account = TailTtftAccount(slo(Metric.TTFT, "p99", 1.0, reference_s=0.5))
        before = account.step_limit(load()).seconds
        for _ in range(3):
            account.on_first_token(1.1, offline_delay_s=0.3)
        assert account.step_limit(load()).seconds < before

    def test_a_step_takes_the_decodes_own_time_and_what_the_headroom_pays_for(self) -> None:
        tight = slo(Metric.TTFT, "p99", 1.0, reference_s=0.98)
        account = TailTtftAccount(tight, prompt_step_s=lambda: 0.1)
        limit = account.step_limit(load(decoders=5, earliest_token_s=0.0, base_s=0.03))
        assert 0.03 < limit.seconds < 0.03 + 0.02

    @pytest.mark.parametrize("base_s", [0.01, 0.02, 0.04])
    def test_what_a_step_adds_costs_the_tail_its_headroom(self, base_s: float) -> None:
        """Three quarters of a longer step, and ten prompt steps beside the kept decoders."""
        at = load(decoders=5, earliest_token_s=0.0, base_s=base_s)
        extra_s = tail_extra_s(at, headroom_s=0.02, prompt_steps=10)
        longer_s = extra_s * (base_s + extra_s) / (0.01 + extra_s)
        paid_s = 0.75 * longer_s + 10 * (longer_s - extra_s)
        assert extra_s == pytest.approx(0.02) or paid_s == pytest.approx(0.02)
        assert paid_s < 0.0201

    def test_dear_decodes_leave_less_for_offline_work(self) -> None:
        extras_s = [
            tail_extra_s(load(decoders=5, base_s=base_s), headroom_s=0.02, prompt_steps=10)
            for base_s in (0.012, 0.02, 0.04)
        ]
        assert extras_s == sorted(extras_s, reverse=True)
        assert min(extras_s) > 0
