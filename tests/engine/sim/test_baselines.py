"""The baselines do what their names say: chunks, preemption or its lack, a gateway's window."""

from dataclasses import replace

import pytest

from tests.engine.sim.runs import SHAPE, SLOS, Watched, offline, online, replica, watching
from weir_engine.config import EngineShape
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass, RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.sim.baselines import AimdSettings, AimdWindow, StockScheduler
from weir_engine.sim.loop import Window
from weir_engine.sim.records import RequestRecord, SimResult
from weir_engine.sim.replica import PlannerFactory
from weir_engine.sim.workload import RequestSpec, Segment


def stock(step_tokens: int, *, fixed: bool = False, by_class: bool = True) -> PlannerFactory:
    def make(shape: EngineShape, kv: KvManager) -> StockScheduler:
        return StockScheduler(shape, kv, step_tokens=step_tokens, fixed=fixed, by_class=by_class)

    return make


def run(planner: PlannerFactory, until_s: float = 40.0) -> tuple[SimResult, Watched]:
    """Offline work without end, on an engine with few sequence slots."""
    seen: list[Watched] = []
    narrow = replace(replica(), shape=replace(SHAPE, max_seqs=4))
    result = narrow.simulate(
        online=online(),
        offline=offline(count=100, output=60),
        until_s=until_s,
        planner=watching(planner, seen),
    )
    return result, seen[0]


def mean_ttft_s(result: SimResult) -> float:
    return sum(record.ttft_s for record in result.online) / len(result.online)


def test_a_static_chunk_bounds_every_step_in_tokens() -> None:
    result, watched = run(stock(32, fixed=True))
    assert len(result.online) == len(online())
    sizes = [sum(work.tokens for work in plan.work) for plan in watched.plans]
    assert max(sizes) == 32


def test_stock_leaves_an_online_arrival_waiting_where_the_fixed_policy_preempts() -> None:
    waits, calm = run(stock(512))
    preempts, watched = run(stock(512, fixed=True))
    assert mean_ttft_s(waits) > 1.5 * mean_ttft_s(preempts)
    assert preempts.preemptions > 0
    assert all(r.output_tokens <= r.max_output_tokens for r in watched.requests)
    assert len(calm.plans) > 100


def test_requests_of_one_moment_go_in_the_order_given() -> None:
    specs = tuple(reversed(offline(count=3)))
    seen: list[Watched] = []
    replace(replica(), shape=replace(SHAPE, max_seqs=1)).simulate(
        online=(),
        offline=Window(specs, size=len(specs)),
        until_s=60.0,
        planner=watching(stock(512), seen),
    )
    works = [work for plan in seen[0].plans for work in plan.work if work.admitted]
    assert [work.request_id for work in works] == [spec.id for spec in specs]


def test_without_classes_online_requests_queue_behind_offline_ones() -> None:
    first_come, _ = run(stock(512, by_class=False), until_s=60.0)
    by_class, _ = run(stock(512))
    assert mean_ttft_s(first_come) > 2 * mean_ttft_s(by_class)


def test_a_window_hands_out_in_order_and_refills() -> None:
    specs = offline(count=2)
    window = Window(specs, size=4)
    assert window.take(now_s=0.0, unfinished=0) == list(specs[:4])
    assert window.take(now_s=0.0, unfinished=4) == []
    assert window.take(now_s=1.0, unfinished=1) == list(specs[4:7])
    assert window.take(now_s=1.0, unfinished=0) == list(specs[7:])


def ended(ttft_s: float, tbt_s: float) -> RequestRecord:
    times = (ttft_s, ttft_s + tbt_s, ttft_s + 2 * tbt_s)
    return RequestRecord(
        id=RequestId("on"),
        arrival_s=0.0,
        prompt_tokens=1,
        hit_tokens=0,
        tokens_s=times,
        preemptions=0,
    )


def test_the_gateway_rises_by_one_while_latency_holds_and_halves_when_it_does_not() -> None:
    settings = AimdSettings(interval_s=1.0, most=6)
    window = AimdWindow(offline(), slos=SLOS, settings=settings)

    def level(now_s: float) -> int:
        return len(window.take(now_s=now_s, unfinished=0))

    levels = [level(float(now_s)) for now_s in range(8)]
    assert levels == [1, 2, 3, 4, 5, 6, 6, 6]
    window.online_ended(ended(0.1, tbt_s=SLOS[0].threshold_s * 2))
    assert [level(8.0), level(9.0)] == [3, 4]
    window.online_ended(ended(0.1, tbt_s=SLOS[0].threshold_s / 2))
    assert level(10.0) == 5


def test_a_gateway_may_look_back_further_than_its_interval_and_want_some_room() -> None:
    """One late answer holds it down for as long as it looks back; 98% of the SLO is too much."""
    settings = AimdSettings(interval_s=1.0, window_s=3.0, spare=0.05)
    window = AimdWindow(offline(), slos=SLOS, settings=settings)

    def level(now_s: float) -> int:
        return len(window.take(now_s=now_s, unfinished=0))

    assert [level(float(now_s)) for now_s in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    window.online_ended(ended(0.1, tbt_s=SLOS[0].threshold_s * 0.98))
    assert [level(7.0 + i) for i in range(1, 6)] == [4, 2, 1, 2, 3]


def test_a_gateway_without_an_objective_is_refused() -> None:
    with pytest.raises(ConfigError, match="SLO"):
        AimdWindow((), slos=(), settings=AimdSettings())


def test_a_gateway_over_stock_engine_runs_to_the_end() -> None:
    specs = offline(count=4)
    window = AimdWindow(specs, slos=SLOS, settings=AimdSettings(interval_s=1.0))
    result = replica().simulate(
        online=online(), offline=window, until_s=120.0, planner=stock(SHAPE.max_batched_tokens)
    )
    assert result.offline_finished == len(specs)
    assert len(result.online) == len(online())


def spec(name: str, prompt: int, *, klass: RequestClass, at_s: float) -> RequestSpec:
    return RequestSpec(
        id=RequestId(name),
        klass=klass,
        arrival_s=at_s,
        segments=(Segment(key=name, tokens=prompt),),
        output_tokens=40,
    )


@pytest.mark.parametrize("second", [True, False])
def test_the_fixed_policy_preempts_as_many_as_a_prompt_needs(*, second: bool) -> None:
    """Two of three blocks each, of ten. Behind another online prompt it waits all the same."""
    seen: list[Watched] = []
    small = replace(replica(), shape=replace(SHAPE, total_blocks=10))
    arrivals = [("first", 48)] * second + [("on", 120), ("small", 10)]
    result = small.simulate(
        online=tuple(spec(name, n, klass=RequestClass.ONLINE, at_s=0.1) for name, n in arrivals),
        offline=tuple(spec(f"off{n}", 33, klass=RequestClass.OFFLINE, at_s=0.0) for n in range(2)),
        until_s=40.0,
        planner=watching(stock(256, fixed=True), seen),
    )
    assert sorted(record.id for record in result.online) == sorted(name for name, _ in arrivals)
    assert result.offline_finished == 2
    (plan,) = [
        {gone.request_id for gone in plan.preempt}
        for plan in seen[0].plans
        if any(work.request_id == "on" and work.admitted for work in plan.work)
    ]
    assert plan == (set() if second else {"off0", "off1"})
