"""Who is turned away on arrival. Worked examples of our own: the printed equation is lost."""

import pytest

from tests.engine.sched.mini_engine import exact_model, request
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.latency.features import EMPTY_SHAPE
from weir_engine.latency.models import ModulewiseModel
from weir_engine.presets import build_scheduler
from weir_engine.request import Request
from weir_engine.sched.admission import TtftAdmission
from weir_engine.sched.plan import StepPlan

SLOS = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=0.100),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.0305),
)


def admission() -> TtftAdmission:
    # A step costs 10 ms and 1 ms a token, so one TPOT holds 20 prompt tokens (and no 21st).
    return TtftAdmission(SLOS, exact_model(), max_batched_tokens=64)


def arrived(seat: TtftAdmission, *requests: Request) -> list[Request]:
    for one in requests:
        seat.on_add(one)
    return list(requests)


def plan_at(now_s: float) -> StepPlan:
    return StepPlan(step=1, now_s=now_s, shape=EMPTY_SHAPE, online_shape=EMPTY_SHAPE)


def test_who_cannot_be_served_in_time_is_refused_and_makes_room_for_the_next() -> None:
    seat = admission()
    waiting = arrived(
        seat,
        request("a", online=True, prompt=50, at=0.0),
        request("b", online=True, prompt=30, at=0.001),  # behind a: 130 ms
        request("c", online=True, prompt=8, at=0.002),  # behind a alone: 88 ms
    )
    assert seat.refused([], waiting, 0.003) == {RequestId("b")}


def test_time_that_has_passed_and_prompts_under_way_count() -> None:
    seat = admission()
    running = request("r", online=True, prompt=60)
    running.computed_tokens = 20
    waiting = arrived(seat, request("a", online=True, prompt=10, at=0.0))
    assert seat.refused([running], waiting, 0.010) == frozenset()  # 80 ms of 90
    assert seat.refused([running], waiting, 0.030) == {RequestId("a")}


def test_a_request_is_judged_once_in_the_first_plan_after_its_arrival() -> None:
    seat = admission()
    early, late = request("a", online=True, prompt=10), request("z", online=True, at=0.5)
    waiting = arrived(seat, early, late, request("off", online=False))[:2]
    seat.on_begin(plan_at(0.1), {})
    # It waits far too long by now, but it was let in.
    assert RequestId("a") not in seat.refused([], waiting, 9.0)
    assert RequestId("z") in seat.refused([], waiting, 9.0)
    seat.on_begin(plan_at(9.0), {})
    assert seat.refused([], waiting, 99.0) == frozenset()


def test_decoders_are_counted_among_the_running() -> None:
    seat = admission()
    decoders = []
    for at in range(10):
        decoder = request(f"d{at}", online=True, prompt=8)
        decoder.computed_tokens, decoder.output_tokens = 8, 1
        decoders.append(decoder)
    waiting = arrived(seat, request("a", online=True, prompt=40, at=0.0))
    assert seat.refused([], waiting, 0.0) == frozenset()
    assert seat.refused(decoders, waiting, 0.0) == {RequestId("a")}


def test_the_queue_drains_in_steps_as_they_are_planned_not_of_a_whole_tpot() -> None:
    # A quarter of the steps take half again what is predicted, so steps are planned to 20 ms, with
    # 10 prompt tokens each: 115 ms for 55 of them. In steps of a whole TPOT it would be 85 ms.
    unsteady = exact_model(residuals=(1.0, 1.0, 1.0, 1.5))
    seat = TtftAdmission(SLOS, unsteady, max_batched_tokens=64)
    waiting = arrived(seat, request("a", online=True, prompt=55, at=0.0))
    assert seat.refused([], waiting, 0.0) == {RequestId("a")}
    steady = admission()
    assert steady.refused([], arrived(steady, *waiting), 0.0) == frozenset()


def test_it_needs_both_objectives() -> None:
    for slos in (SLOS[:1], SLOS[1:]):
        with pytest.raises(ConfigError, match="ttft or tpot"):
            TtftAdmission(slos, exact_model(), max_batched_tokens=64)


def build(*, may_refuse: bool) -> tuple[list[StepPlan], int]:
    """A scheduler with one prompt that takes far longer than its TTFT, planned once."""
    kv = KvManager(total_blocks=64, block_size_tokens=4)
    scheduler = build_scheduler(
        "omniserve",
        shape=EngineShape(
            block_size_tokens=4,
            total_blocks=64,
            max_batched_tokens=64,
            max_seqs=8,
            max_model_len_tokens=256,
        ),
        slos=SLOS,
        kv=kv,
        model=ModulewiseModel(),
        policy=Policy(offline_kv_blocks=64, offline_seq_slots=8),
        may_refuse=may_refuse,
    )
    scheduler.add(request("long", online=True, prompt=200))
    plan = scheduler.plan(0.0)
    assert plan == scheduler.plan(0.0)
    scheduler.begin(plan)
    return [plan], len(scheduler.state.requests)


def test_a_refused_request_gets_no_work_and_is_known_no_more() -> None:
    (plan,), known = build(may_refuse=True)
    assert plan.refused == (RequestId("long"),)
    assert plan.work == ()
    assert known == 0


def test_where_the_engine_cannot_refuse_every_request_is_taken() -> None:
    (plan,), known = build(may_refuse=False)
    assert plan.refused == ()
    assert [work.request_id for work in plan.work] == ["long"]
    assert known == 1
