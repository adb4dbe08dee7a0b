"""When offline prompts join a batch that is full of decodes, and how large their steps are."""

from tests.engine.sched.full_batch import SLOTS, WAITING, admitted_after_each_end, full
from tests.engine.sched.mini_engine import STEP_S, TOKEN_S, exact_model, request
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.sched.gathering import PromptGathering
from weir_engine.sched.plan import StepOutcome, StepPlan


def test_prompts_are_gathered_until_several_slots_are_free() -> None:
    assert admitted_after_each_end(full()) == [0, 0, 3]


def test_presets_of_the_papers_admit_at_once() -> None:
    assert admitted_after_each_end(full("sarathi")) == [1, 1, 1]


def test_an_online_request_takes_a_slot_that_was_left_free() -> None:
    engine = full()
    admitted_after_each_end(engine, ends=1)
    engine.add(request("on", online=True, at=engine.now_s))
    plan = engine.step()
    assert plan.work[0].request_id == "on"
    assert not plan.preempt


def test_a_step_with_an_online_prompt_takes_offline_prompts_along() -> None:
    engine = full()
    admitted_after_each_end(engine, ends=2)
    engine.add(request("on", online=True, at=engine.now_s))
    # One of the two free slots is its own, the other is filled at once.
    assert sum(work.admitted for work in engine.step().work) == 2


def test_gathered_requests_all_end() -> None:
    engine = full()
    engine.run()
    assert set(engine.ended.values()) == {1}
    assert len(engine.ended) == SLOTS + WAITING


def learned(gathering: PromptGathering, tokens: int, each_s: float) -> None:
    shape = StepShape(prefill_tokens=tokens, prefill_requests=1)
    for step in range(20):
        plan = StepPlan(step=step, now_s=0.0, shape=shape, online_shape=EMPTY_SHAPE)
        ended_s = STEP_S + tokens * each_s
        gathering.on_commit(plan, StepOutcome(started_s=0.0, ended_s=ended_s))


def test_steps_have_the_size_at_which_prompts_were_cheapest() -> None:
    gathering = PromptGathering(exact_model())
    assert gathering.most_tokens(100, 1000) == 1000
    learned(gathering, 250, 2 * TOKEN_S)
    learned(gathering, 500, TOKEN_S)
    learned(gathering, 890, 1.5 * TOKEN_S)
    assert gathering.most_tokens(100, 1000) == 512
    assert gathering.most_tokens(100, 400) == 256
    # Beside 500 decodes that size leaves prompts no tile.
    assert gathering.most_tokens(500, 1000) == 896


def test_a_pause_of_the_machine_is_no_price() -> None:
    gathering = PromptGathering(exact_model())
    learned(gathering, 500, TOKEN_S)
    learned(gathering, 890, 1.1 * TOKEN_S)
    assert gathering.most_tokens(100, 1000) == 512
    shape = StepShape(prefill_tokens=500, prefill_requests=1)
    plan = StepPlan(step=1, now_s=0.0, shape=shape, online_shape=EMPTY_SHAPE)
    gathering.on_commit(plan, StepOutcome(started_s=0.0, ended_s=5.0))
    assert gathering.most_tokens(100, 1000) == 512


def test_sizes_are_asked_for_only_where_slots_are_short() -> None:
    gathering = PromptGathering(exact_model())
    assert gathering.short(4, decodes=40)
    assert not gathering.short(5, decodes=40)
