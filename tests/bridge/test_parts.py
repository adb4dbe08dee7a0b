"""Step times, parking, divergence: the small parts of the bridge, without an engine."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState

from tests.support.waiting import eventually
from weir_agent.latency import Summary
from weir_agent.policy import client_delays
from weir_agent.settings import SloSetting
from weir_agent.vllm_bridge.divergence import actual_plan, find_divergence
from weir_agent.vllm_bridge.outcome import read_outcome
from weir_agent.vllm_bridge.parking import LONGEST_S, LONGEST_WITH_ONLINE_S, Parking
from weir_agent.vllm_bridge.readiness import Readiness
from weir_agent.vllm_bridge.recorder import Recorder, Window
from weir_agent.vllm_bridge.steps import StepLog, StepTiming
from weir_engine.ids import RequestClass, RequestId
from weir_engine.latency.features import EMPTY_SHAPE
from weir_engine.request import Request
from weir_engine.sched.plan import Preemption, StepPlan, Work


def plan(*work: Work, preempt: tuple[str, ...] = ()) -> StepPlan:
    return StepPlan(
        step=1,
        now_s=0.0,
        work=work,
        preempt=tuple(Preemption(request_id=RequestId(name), reason="test") for name in preempt),
        shape=EMPTY_SHAPE,
        online_shape=EMPTY_SHAPE,
    )


def work(name: str, tokens: int, *, hit: int | None = None) -> Work:
    return Work(
        request_id=RequestId(name), tokens=tokens, admitted=hit is not None, hit_tokens=hit or 0
    )


PLAN = plan(work("a", 1))


def test_a_synchronous_step_lasts_from_schedule_to_update() -> None:
    log = StepLog(asynchronous=False, warm_up=0)
    output = object()
    log.sent(output, PLAN, scheduled_s=10.0, exact=True)
    ended, timing = log.ended(output, 10.5)
    assert ended is PLAN
    assert (timing.started_s, timing.ended_s, timing.timed) == (10.0, 10.5, True)


def test_an_asynchronous_step_starts_when_the_one_before_it_ends() -> None:
    log = StepLog(asynchronous=True, warm_up=0)
    first, second, third = object(), object(), object()
    log.sent(first, PLAN, scheduled_s=1.0, exact=True)
    log.sent(second, PLAN, scheduled_s=1.1, exact=True)
    assert log.computing == 2
    assert [log.in_flight(RequestId(name)) for name in ("a", "b")] == [2, 0]
    assert not log.ended(first, 2.0)[1].timed  # nothing was before it: the engine came from idle
    log.sent(third, PLAN, scheduled_s=2.1, exact=True)
    timing = log.ended(second, 2.5)[1]
    assert (timing.started_s, timing.timed) == (2.0, True)
    assert log.ended(third, 3.5)[1].started_s == 2.5


def test_a_launch_that_outlasts_the_step_before_counts_for_its_own_step() -> None:
    log = StepLog(asynchronous=True, warm_up=0)
    before, decode, prompt, more, last = object(), object(), object(), object(), object()
    log.sent(before, PLAN, scheduled_s=0.9, exact=True)
    log.sent(decode, PLAN, scheduled_s=0.92, exact=True)
    log.launched(decode, 0.922)
    log.ended(before, 1.0)
    log.sent(prompt, PLAN, scheduled_s=1.003, exact=True)
    log.launched(prompt, 1.033)
    # The decode's tokens are there at once after the prompt's launch: since when nobody knows.
    timing = log.ended(decode, 1.034)[1]
    assert not timing.timed
    assert timing.ended_s == 1.034
    assert timing.ended_s - timing.started_s == pytest.approx(0.003)
    log.sent(more, PLAN, scheduled_s=1.036, exact=True)
    log.launched(more, 1.066)
    timing = log.ended(prompt, 1.067)[1]  # again at once: from one launch to the next
    assert timing.timed
    assert timing.ended_s - timing.started_s == pytest.approx(0.033)
    log.sent(last, PLAN, scheduled_s=1.069, exact=True)
    log.launched(last, 1.070)
    timing = log.ended(more, 1.080)[1]  # it was waited for
    assert timing.timed
    assert (timing.started_s, timing.ended_s) == (1.036, 1.080)
    assert log.ended(last, 1.085)[1].started_s == 1.080


def test_a_synchronous_step_has_its_whole_launch_anyway() -> None:
    log = StepLog(asynchronous=False, warm_up=0)
    first, second = object(), object()
    log.sent(first, PLAN, scheduled_s=1.0, exact=True)
    log.sent(second, PLAN, scheduled_s=1.1, exact=True)
    log.launched(second, 1.9)
    assert log.ended(first, 1.91)[1].started_s == 1.0


def test_first_steps_empty_steps_and_amended_plans_are_not_timed() -> None:
    log = StepLog(asynchronous=False, warm_up=1)
    outputs = [object() for _ in range(4)]
    log.sent(outputs[0], PLAN, scheduled_s=0.0, exact=True)
    assert not log.ended(outputs[0], 1.0)[1].timed
    log.sent(outputs[1], None, scheduled_s=1.0, exact=True)
    assert log.ended(outputs[1], 2.0)[0] is None
    log.sent(outputs[2], PLAN, scheduled_s=2.0, exact=False)
    assert not log.ended(outputs[2], 3.0)[1].timed
    assert log.ended(object(), 4.0)[0] is None  # a step that it never saw
    assert log.computing == 0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_parked_engine_wakes_when_the_plan_said() -> None:
    clock = Clock()
    parking = Parking(clock)
    parking.park(clock(), idle_s=0.3, waiting=True, online=False)
    assert parking.parked
    clock.now_s += 0.29
    assert parking.parked
    clock.now_s += 0.02
    assert not parking.parked


@pytest.mark.parametrize(
    ("online", "longest_s"), [(False, LONGEST_S), (True, LONGEST_WITH_ONLINE_S)]
)
def test_the_plan_is_asked_again_whatever_it_said(online: bool, longest_s: float) -> None:
    clock = Clock()
    parking = Parking(clock)
    parking.park(clock(), idle_s=None, waiting=True, online=online)
    clock.now_s += longest_s * 1.01
    assert not parking.parked


def test_anything_that_happens_unparks() -> None:
    parking = Parking(Clock())
    parking.park(100.0, idle_s=None, waiting=True, online=False)
    parking.unpark()
    assert not parking.parked


def test_the_waker_wakes_the_engine_from_another_thread() -> None:
    import time

    woken = threading.Event()
    parking = Parking(time.monotonic)
    parking.use(woken.set)
    for idle_s in (5.0, 0.01):  # a new wish replaces the old one
        parking.park(time.monotonic(), idle_s=idle_s, waiting=True, online=False)
    assert woken.wait(timeout=30)
    woken.clear()
    parking.park(time.monotonic(), idle_s=0.01, waiting=True, online=False)
    assert woken.wait(timeout=30)
    parking.close()
    assert eventually(
        lambda: not any(thread.name == "weir-waker" for thread in threading.enumerate())
    )


def output(
    scheduled: dict[str, int], *, new: tuple[str, ...] = (), resumed: tuple[str, ...] = ()
) -> Any:  # noqa: ANN401 - stands in for vLLM's
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(resumed)),
    )


def computed(**tokens: int) -> dict[str, Any]:
    return {name: SimpleNamespace(num_computed_tokens=count) for name, count in tokens.items()}


def test_what_was_planned_and_done_does_not_diverge() -> None:
    tokens = {"a": 1, "b": 20}
    assert find_divergence(tokens, {"b": 32}, output(tokens), computed(a=5, b=52)) is None


@pytest.mark.parametrize(
    ("scheduled", "requests", "words"),
    [
        ({"a": 1}, computed(a=5, b=0), "'b': (20, 0)"),
        ({"a": 1, "b": 8}, computed(a=5, b=40), "'b': (20, 8)"),
        ({"a": 1, "b": 20, "c": 3}, computed(a=5, b=52, c=3), "'c': (0, 3)"),
        ({"a": 1, "b": 20}, computed(a=5, b=84), "hits (planned, found) {'b': (32, 64)}"),
    ],
)
def test_a_divergence_says_what_differs(
    scheduled: dict[str, int], requests: dict[str, Any], words: str
) -> None:
    found = find_divergence({"a": 1, "b": 20}, {"b": 32}, output(scheduled), requests)
    assert words in str(found)


def test_a_preemption_that_nobody_planned_is_a_divergence() -> None:
    found = find_divergence({"a": 1}, {}, output({"a": 1}), computed(a=5), extra_preempted={"z"})
    assert "preempted without a plan ['z']" in str(found)


def test_the_plan_becomes_what_was_done() -> None:
    planned = plan(work("a", 1), work("b", 20, hit=32), preempt=("v",))
    done = actual_plan(
        planned,
        {one.request_id: one for one in planned.work},
        {"v", "z"},
        output({"a": 1, "c": 6}, resumed=("c",)),
        computed(a=5, c=38),
    )
    assert done is not None
    assert [(w.request_id, w.tokens, w.admitted, w.hit_tokens) for w in done.work] == [
        ("a", 1, False, 0),
        ("c", 6, True, 32),
    ]
    assert {preemption.request_id for preemption in done.preempt} == {"v", "z"}
    assert actual_plan(plan(), {}, set(), output({}), {}) is None


def test_a_window_forgets_and_reports_plain_figures() -> None:
    window = Window(horizon_s=10.0)
    for second in range(20):
        window.add(float(second), float(second))
    summary = window.summary(19.0)
    assert summary == {"count": 11, "mean_s": 14.0, "p50_s": 14.0, "p90_s": 18.0, "p99_s": 19.0}
    assert window.summary(100.0)["count"] == 0


def test_only_timed_steps_tell_of_the_predictors_error() -> None:
    recorder = Recorder()
    recorder.step(1.0, duration_s=0.1, predicted_s=0.08, timed=True, bridge_s=0.002)
    recorder.step(2.0, duration_s=0.3, predicted_s=9.0, timed=False, bridge_s=0.004)
    report = recorder.report(2.0)
    assert report["predictor_mape"] == pytest.approx(0.2)
    assert report["step_mean_s"] == pytest.approx(0.2)
    assert report["step_p99_s"] == pytest.approx(0.3)
    assert report["bridge_mean_s"] == pytest.approx(0.003)
    later = recorder.report(61.5)
    assert later["step_mean_s"] == pytest.approx(0.3)
    assert later["predictor_mape"] == 0.0
    assert later["step_seconds"] == pytest.approx(0.4)


@pytest.mark.parametrize("in_flight", [0, 1])
def test_what_clients_see_later_than_the_engine_is_known_of_tpot_too(in_flight: int) -> None:
    """A first token that was long in coming is no delay between engine and client."""
    recorder = Recorder()
    for number in range(20):
        request = Request(
            id=RequestId(f"r{number}"),
            klass=RequestClass.ONLINE,
            arrival_s=0.0,
            prompt_tokens=8,
            max_output_tokens=50,
        )
        request.output_tokens = 5 + in_flight
        request.first_token_s, request.last_token_s = 2.0, 2.3
        result = SimpleNamespace(request_id=request.id, new_token_ids=[7], finish_reason=0)
        read_outcome(
            {0: SimpleNamespace(outputs=[result])},
            {request.id: request},
            StepTiming(started_s=2.3, ended_s=2.4, timed=True),
            recorder,
            streams={request.id},
            in_flight=lambda _request_id: in_flight,
        )
    in_engine: Any = recorder.report(2.4)
    assert in_engine["tpot"]["mean_s"] == pytest.approx(0.1)
    slos = (SloSetting(metric="tpot", statistic="mean", threshold_s=0.2),)
    at_client = {"tpot": Summary(count=20, mean_s=0.13)}
    assert client_delays(slos, at_client, in_engine) == {"tpot_mean": pytest.approx(0.03)}


def of_engine(*, asynchronous: bool, pause: PauseState = PauseState.UNPAUSED) -> Readiness:
    """Of one with a request in flight that ends there, and one whose old output is in flight."""
    last = SimpleNamespace(
        num_output_placeholders=1, num_prompt_tokens=4, max_tokens=2, num_computed_tokens=5
    )
    stale = SimpleNamespace(num_stale_output_tokens=1, drop_stale_output=False)
    vllm: Any = SimpleNamespace(
        _pause_state=pause, max_model_len=64, requests={"last": last, "stale": stale}
    )
    return Readiness(vllm, asynchronous=asynchronous)


def test_an_asynchronous_engine_does_not_take_what_waits_for_its_output() -> None:
    works = [
        Work(request_id=RequestId("last"), tokens=1),
        Work(request_id=RequestId("stale"), tokens=1, admitted=True),
    ]
    later = of_engine(asynchronous=True)
    assert not later.takes_all
    assert [later.takes(work) for work in works] == [False, False]
    at_once = of_engine(asynchronous=False)
    assert at_once.takes_all
    assert all(at_once.takes(work) for work in works)


def test_a_paused_engine_admits_nobody() -> None:
    paused = of_engine(asynchronous=False, pause=PauseState.PAUSED_NEW)
    assert not paused.takes_all
    assert not paused.takes(Work(request_id=RequestId("new"), tokens=1, admitted=True))
    assert paused.takes(Work(request_id=RequestId("old"), tokens=1))
