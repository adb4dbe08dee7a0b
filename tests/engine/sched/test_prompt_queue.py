"""What waiting online prompts still take, and what of their slack is given to offline work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.sched.mini_engine import MiniEngine, exact_model, request
from weir_engine.config import Metric, Slo
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.sched.account import OnlineLoad
from weir_engine.sched.plan import StepPlan
from weir_engine.sched.prompt_queue import beside_prompts_s, queue_s

TTFT_1S = Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0, reference_s=0.5)


def seconds(
    *queue: tuple[int, int], decodes: StepShape = EMPTY_SHAPE, least_steps: int = 0
) -> float:
    # A step costs 10 ms and 1 ms a token, so a limit of 30.5 ms holds 20 tokens (and no 21st).
    return queue_s(
        exact_model(), decodes, queue, limit_s=0.0305, step_tokens=64, least_steps=least_steps
    )


def test_prompts_are_predicted_as_full_steps_and_what_is_left_over() -> None:
    # 50 tokens: two steps of 20 at 30 ms and one of 10 at 20 ms.
    assert seconds((50, 0)) == pytest.approx(0.080)
    assert seconds((40, 0)) == pytest.approx(0.060)
    assert seconds() == 0.0


def test_decodes_leave_less_of_each_step_to_prompts() -> None:
    ten = StepShape(decode_requests=10, decode_context=80, decode_longest=8)
    # Ten decodes leave 10 tokens a step: 50 tokens take five steps.
    assert seconds((50, 0), decodes=ten) == pytest.approx(0.150)


def test_prompts_that_get_a_step_each_pay_for_each() -> None:
    assert seconds((5, 0), (5, 0)) == pytest.approx(0.020)
    assert seconds((5, 0), (5, 0), least_steps=2) == pytest.approx(0.030)


def beside_s(
    prompts_s: float,
    *,
    waited_s: float = 0.0,
    headroom_s: float = 10.0,
    delayed_s: float = 0.0,
    busy_s: float = 0.0,
) -> float:
    """Beside a prompt of an objective of 1 s."""
    load = OnlineLoad(
        now_s=5.0,
        busy_s=busy_s,
        earliest_arrival_s=5.0 - waited_s,
        prefills=1,
        base_s=0.05,
        prompts_s=prompts_s,
        prompts_delay_s=delayed_s,
    )
    return beside_prompts_s(load, threshold_s=1.0, headroom_s=headroom_s)


def test_a_quarter_of_what_the_prompts_could_wait_is_given() -> None:
    assert beside_s(0.2) == pytest.approx(0.2)
    assert beside_s(0.2, waited_s=0.4) == pytest.approx(0.1)
    assert beside_s(0.2, waited_s=0.9) == 0.0


def test_what_the_step_under_way_still_takes_is_no_slack() -> None:
    assert beside_s(0.2, waited_s=0.4, busy_s=0.2) == pytest.approx(0.05)


def test_what_offline_work_may_delay_the_next_one_by_bounds_it_too() -> None:
    assert beside_s(0.2, headroom_s=0.4) == pytest.approx(0.1)
    assert beside_s(0.2, headroom_s=0.4, delayed_s=0.2) == pytest.approx(0.05)
    assert beside_s(0.2, headroom_s=0.4, delayed_s=0.5) == 0.0


times = st.floats(0, 10)


@given(prompts_s=times, waited_s=times, headroom_s=times, delayed_s=times)
def test_no_more_is_given_than_there_is(
    prompts_s: float, waited_s: float, headroom_s: float, delayed_s: float
) -> None:
    given_s = beside_s(
        prompts_s,
        headroom_s=headroom_s,
        waited_s=waited_s,
        delayed_s=delayed_s,
    )
    assert 0 <= given_s <= max(1.0 - waited_s - prompts_s, 0) + 1e-9
    assert given_s <= max(headroom_s - delayed_s, 0)


@given(prompts_s=st.floats(0.001, 1), steps=st.integers(1, 100))
def test_however_many_steps_the_prompts_take_they_are_in_time(prompts_s: float, steps: int) -> None:
    now_s, left_s = 5.0, prompts_s
    for _ in range(steps):
        extra_s = beside_s(left_s, waited_s=now_s - 5.0)
        now_s += prompts_s / steps + extra_s
        left_s -= prompts_s / steps
    assert now_s <= 6.0 + 1e-9


def offline_tokens(plan: StepPlan) -> int:
    return sum(work.tokens for work in plan.work if work.request_id.startswith("off"))


def busy_engine(blocks: int = 64) -> MiniEngine:
    """Offline work without end under an objective of 1 s, which online alone has at 0.5 s."""
    engine = MiniEngine(slos=(TTFT_1S,), blocks=blocks)
    engine.add(request("off", online=False, prompt=200, output=20))
    return engine


def test_beside_a_prompt_with_time_to_spare_offline_work_runs() -> None:
    engine = busy_engine()
    engine.add(request("on", online=True, prompt=20))
    plan = engine.step()
    assert offline_tokens(plan) > 0
    assert plan.limit_reason == "ttft-prefill"
    # 30 ms for the prompt alone, and a quarter of the 0.4 s that are planned for at most.
    assert plan.limit_s == pytest.approx(0.030 + 0.25 * 0.4)


def test_a_prompt_that_has_waited_for_long_is_alone() -> None:
    engine = busy_engine()
    engine.add(request("on", online=True, prompt=20))
    engine.now_s = 0.98
    assert offline_tokens(engine.step()) == 0


def test_many_prompts_leave_nothing_although_each_could_wait() -> None:
    engine = busy_engine(blocks=400)
    for i in range(16):  # 64 tokens at 74 ms each, one after the other: 1.18 s
        engine.add(request(f"on{i:02}", online=True, prompt=64))
    assert offline_tokens(engine.step()) == 0


def test_prompts_that_lack_memory_are_not_delayed_further() -> None:
    """When they start depends on when others end, which no prediction of prompts says."""
    engine = MiniEngine(slos=(TTFT_1S,), blocks=20, max_seqs=4)
    engine.add(request("long", online=True, prompt=48, output=20))
    engine.step()
    engine.add(request("off", online=False, prompt=8, output=20, at=engine.now_s))
    engine.step()
    engine.add(request("on", online=True, prompt=40, at=engine.now_s))
    plan = engine.step()
    assert not any(work.request_id == "on" for work in plan.work)
    assert offline_tokens(plan) == 0
    engine.run()
    assert engine.ended == {"long": 1, "off": 1, "on": 1}
