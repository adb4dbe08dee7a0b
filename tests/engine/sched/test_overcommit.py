"""Admissions that count on others to end first: where memory is short and time is not."""

import pytest

from tests.engine.sched import test_invariants
from tests.engine.sched.mini_engine import BLOCK, MiniEngine, request
from weir_engine.config import Metric, Policy, Slo
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.sched import overcommit
from weir_engine.sched.overcommit import Overcommit
from weir_engine.sched.plan import StepPlan
from weir_engine.sched.state import SchedulerState

SLO = Slo(metric=Metric.TBT, statistic="p99", threshold_s=5.0)
SHAPE = StepShape(prefill_tokens=8, prefill_requests=1)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are always taken to have room."""
    monkeypatch.setattr(overcommit, "_LEAST_IDLE", -1.0)


def stepped(
    found: Overcommit,
    steps: int,
    *,
    limit_s: float | None,
    predicted_s: float,
    shape: StepShape = SHAPE,
) -> bool:
    """Whether it is allowed after so many equal steps."""
    plan = StepPlan(
        step=1,
        now_s=0.0,
        work=(),
        shape=shape,
        online_shape=EMPTY_SHAPE,
        predicted_s=predicted_s,
        limit_s=limit_s,
    )
    for _ in range(steps):
        found.on_begin(plan)
    return found.allowed


@pytest.fixture
def state() -> SchedulerState:
    """With an offline request that waits."""
    engine = MiniEngine()
    engine.add(request("off", online=False))
    return engine.scheduler.state


@pytest.mark.parametrize("limit_s", [0.1, float("inf"), None])
def test_allowed_once_steps_keep_having_time_left(
    state: SchedulerState, limit_s: float | None
) -> None:
    found = Overcommit(state)
    assert not found.allowed
    assert not stepped(found, 10, limit_s=limit_s, predicted_s=0.05)
    assert stepped(found, 1000, limit_s=limit_s, predicted_s=0.05)


def test_not_allowed_any_more_where_steps_are_full(state: SchedulerState) -> None:
    found = Overcommit(state)
    assert stepped(found, 5000, limit_s=0.1, predicted_s=0.05)
    assert not stepped(found, 5000, limit_s=0.1, predicted_s=0.095)


def test_not_allowed_where_steps_take_all_the_tokens_they_may(state: SchedulerState) -> None:
    found = Overcommit(state)
    full = StepShape(prefill_tokens=state.shape.max_batched_tokens, prefill_requests=1)
    assert not stepped(found, 5000, limit_s=0.1, predicted_s=0.05, shape=full)


def test_steps_that_nobody_waits_for_say_nothing_of_blocks() -> None:
    engine = MiniEngine()
    engine.add(request("off", online=False))
    engine.step()
    found = Overcommit(engine.scheduler.state)
    assert engine.scheduler.state.running_offline
    assert not stepped(found, 5000, limit_s=0.1, predicted_s=0.05)


@pytest.mark.parametrize(
    "closed",
    [
        Policy(offline_kv_blocks=0, offline_seq_slots=8),
        Policy(offline_kv_blocks=99, offline_seq_slots=0),
        Policy(offline_kv_blocks=99, offline_seq_slots=8, expires_s=0.0),
    ],
)
def test_steps_that_offline_work_was_kept_out_of_say_nothing(
    state: SchedulerState, closed: Policy
) -> None:
    found = Overcommit(state)
    state.policy = closed
    assert not stepped(found, 5000, limit_s=0.1, predicted_s=0.05)


def test_steps_without_any_offline_request_say_nothing() -> None:
    found = Overcommit(MiniEngine().scheduler.state)
    assert not stepped(found, 5000, limit_s=0.1, predicted_s=0.05)


def waits_for_an_end(slos: tuple[Slo, ...] = (SLO,)) -> MiniEngine:
    """One holds 10 of 22 blocks and ends soon, one grows from 5 to 10 long after, one waits."""
    engine = MiniEngine(
        slos=slos, blocks=22, policy=Policy(offline_kv_blocks=22, offline_seq_slots=8)
    )
    engine.add(request("ends", online=False, prompt=10 * BLOCK - 4, output=4))
    engine.add(request("grows", online=False, prompt=4 * BLOCK, output=6 * BLOCK))
    engine.step()
    engine.step()
    engine.add(request("waits", online=False, prompt=5 * BLOCK, output=4))
    return engine


def test_an_admission_waits_until_each_has_its_blocks() -> None:
    engine = waits_for_an_end()
    assert "waits" not in [work.request_id for work in engine.step().work]


@pytest.mark.usefixtures("always")
def test_an_admission_counts_on_the_one_that_ends_first() -> None:
    engine = waits_for_an_end()
    assert "waits" in [work.request_id for work in engine.step().work]
    engine.run()
    assert engine.ended == {"ends": 1, "grows": 1, "waits": 1}
    assert engine.scheduler.counters.preemptions == 0


@pytest.mark.usefixtures("always")
def test_a_prefix_that_is_in_the_cache_is_not_asked_for_again() -> None:
    engine = MiniEngine(
        slos=(SLO,), blocks=20, policy=Policy(offline_kv_blocks=20, offline_seq_slots=8)
    )
    for name in ("first", "second"):
        prompt = 11 * BLOCK
        engine.add(
            request(name, online=False, prompt=prompt, output=12, prefix="doc", shared_blocks=10)
        )
        engine.step()
    engine.step()
    assert engine.scheduler.state.running_offline.keys() == {"first", "second"}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("slo", ["ttft", "tbt"])
def test_what_gives_way_still_ends_with_all_its_tokens(slo: str) -> None:
    """More than the blocks can hold at once, all admitted on the ends of others."""
    engine = MiniEngine(
        slos=(Slo(metric=Metric(slo), statistic="p99", threshold_s=5.0),),
        blocks=24,
        policy=Policy(offline_kv_blocks=24, offline_seq_slots=8),
    )
    wanted = {}
    for number in range(8):
        output = 8 + 6 * (number % 3)
        wanted[f"off{number}"] = engine.add(
            request(f"off{number}", online=False, prompt=20, output=output, at=number / 1000)
        )
    engine.add(request("on", online=True, prompt=30, output=20))
    engine.run()
    assert engine.ended == dict.fromkeys([*wanted, "on"], 1)
    assert all(each.output_tokens == each.max_output_tokens for each in wanted.values())


@pytest.mark.usefixtures("always")
def test_invariants_hold_with_overcommit_from_the_first_step() -> None:
    test_invariants.test_invariants_hold_under_any_interleaving("weir")


@pytest.mark.usefixtures("always")
def test_without_an_objective_each_has_its_blocks() -> None:
    engine = waits_for_an_end(slos=())
    assert "waits" not in [work.request_id for work in engine.step().work]
