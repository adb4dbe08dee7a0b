"""Measured latency against its threshold."""

from weir_engine.sched.feedback import MeanFeedback, TailFeedback


def test_a_mean_above_its_threshold_beside_offline_work_takes_spending_back() -> None:
    feedback = MeanFeedback(threshold_s=0.1, samples=50)
    for _ in range(50):
        feedback.observe(0.105, beside_offline=True)
    assert 0.4 < feedback.factor(0.02) < 0.6
    for _ in range(50):
        feedback.observe(0.2, beside_offline=True)
    assert feedback.factor(0.02) == 0.0


def test_slow_requests_that_met_no_offline_work_close_nothing() -> None:
    feedback = MeanFeedback(threshold_s=0.1, samples=50)
    feedback.observe(2.0, beside_offline=False)
    assert feedback.factor(0.02) == 1.0


def test_a_closed_mean_opens_again_after_requests_without_it() -> None:
    feedback = MeanFeedback(threshold_s=0.1, samples=50)
    for _ in range(50):
        feedback.observe(0.2, beside_offline=True)
    assert feedback.factor(0.02) == 0.0
    for _ in range(300):
        feedback.observe(0.2, beside_offline=False)
    assert feedback.factor(0.02) > 0.9


def test_a_tail_factor_settles_where_the_allowed_share_is_late() -> None:
    feedback = TailFeedback(allowed=0.1)
    late = 0
    for number in range(5000):
        over = feedback.factor > 0.8 and number % 2 == 0
        late += over
        feedback.observe(over=over)
    assert 0.05 < late / 5000 < 0.15
