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
