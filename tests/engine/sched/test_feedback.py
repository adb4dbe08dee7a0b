"""Measured latency against its threshold."""

import pytest

from weir_engine.sched.feedback import SlackBank, TailFeedback


def test_savings_beyond_the_bound_are_not_spent_later() -> None:
    bank = SlackBank(most_s=0.5, debt_s=2.0)
    for _ in range(100):
        bank.add(0.1)
    assert bank.level_s == 0.5
    for _ in range(5):
        bank.add(-0.1)
    assert bank.level_s == pytest.approx(0.0)


def test_a_debt_is_paid_back_within_its_bound() -> None:
    bank = SlackBank(most_s=0.5, debt_s=2.0)
    bank.add(-60.0)
    assert bank.level_s == -2.0
    for _ in range(21):
        bank.add(0.1)
    assert bank.level_s > 0


def test_a_tail_factor_settles_where_the_allowed_share_is_late() -> None:
    feedback = TailFeedback(allowed=0.1)
    late = 0
    for number in range(5000):
        over = feedback.factor > 0.8 and number % 2 == 0
        late += over
        feedback.observe(over=over)
        feedback.end_step()
    assert 0.05 < late / 5000 < 0.15


def test_a_late_step_costs_the_same_however_many_requests_decode_in_it() -> None:
    after = {}
    for decoders in (1, 64):
        feedback = TailFeedback(allowed=0.01)
        for step in range(60):
            for _ in range(decoders):
                feedback.observe(over=step == 59)
            feedback.end_step()
        after[decoders] = feedback.factor
    assert after[64] == after[1] < 1.0


def test_the_tokens_of_a_step_count_by_their_number() -> None:
    few, many = TailFeedback(allowed=0.01), TailFeedback(allowed=0.01)
    for feedback, late in ((few, 1), (many, 20)):
        for _ in range(60):
            for _ in range(10):
                feedback.observe(over=False)
            feedback.end_step()
        for _ in range(late):
            feedback.observe(over=True)
        feedback.end_step()
    assert many.factor < few.factor < 1.0


def test_a_step_without_tokens_changes_nothing() -> None:
    feedback = TailFeedback(allowed=0.01)
    feedback.observe(over=True)
    feedback.end_step()
    before = feedback.factor
    feedback.end_step()
    assert feedback.factor == before
