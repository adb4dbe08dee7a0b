"""The agent's heartbeat with its engine, on virtual time: what counts as silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.virtual_time import run_virtual
from weir_agent.latency import OnlineLatency
from weir_agent.metrics import AgentMetrics
from weir_agent.pulse import PERIOD_S, EnginePulse
from weir_agent.settings import SloSetting
from weir_agent.vllm_bridge.recorder import Recorder

Clock = Callable[[], float]


@asynccontextmanager
async def beating(
    engine: FakeEngine, clock: Clock, on_slots: Callable[[int], None] = lambda _slots: None
) -> AsyncIterator[EnginePulse]:
    pulse = EnginePulse(
        engine,
        slos=(),
        latency=OnlineLatency(),
        metrics=AgentMetrics(),
        on_slots=on_slots,
        clock=clock,
    )
    task = asyncio.create_task(pulse.run())
    try:
        yield pulse
    finally:
        task.cancel()
        await asyncio.wait({task})


def test_an_engine_that_answers_with_an_error_is_not_silent() -> None:
    """It is not taken for hung, however long it does."""

    async def main(clock: Clock) -> None:
        engine = FakeEngine()

        async def broken() -> None:
            raise RuntimeError("the scheduler could not report")

        engine.telemetry = broken  # type: ignore[method-assign,assignment]
        async with beating(engine, clock) as pulse:
            await asyncio.sleep(90)
            assert clock() - pulse.answered_s <= PERIOD_S
            assert engine.policies == []

    run_virtual(main)


async def test_objectives_are_met_or_missed_only_while_something_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an idle service the last answer of the evening says nothing in the night."""
    now_s = 1000.0
    monkeypatch.setattr("weir_agent.pulse.time.perf_counter", lambda: now_s)
    metrics, latency = AgentMetrics(), OnlineLatency()
    pulse = EnginePulse(
        FakeEngine(),
        slos=(SloSetting(metric="tbt", statistic="p99", threshold_s=0.1),),
        latency=latency,
        metrics=metrics,
        on_slots=lambda _slots: None,
    )

    async def shown(name: str) -> float | None:
        await pulse.beat()
        labels = {"metric": "tbt", "statistic": "p99"}
        return metrics.registry.get_sample_value(f"weir_slo_{name}", labels)

    assert await shown("attained") is None
    latency.add("tbt", now_s, 0.5)
    assert await shown("attained") == 0
    assert await shown("measured_seconds") == 0.5
    now_s += 61
    assert await shown("attained") is None
    assert await shown("measured_seconds") is None
    assert await shown("threshold_seconds") == 0.1
    latency.add("tbt", now_s, 0.05)
    assert await shown("attained") == 1


async def test_an_engine_too_busy_to_answer_does_not_keep_its_objectives_met() -> None:
    """Its steps take seconds: that is what clients see, and nothing newer comes from the engine."""
    metrics, latency, engine = AgentMetrics(), OnlineLatency(), FakeEngine()
    slo = SloSetting(metric="tbt", statistic="p99", threshold_s=0.1)
    pulse = EnginePulse(
        engine, slos=(slo,), latency=latency, metrics=metrics, on_slots=lambda _slots: None
    )
    latency.add("tbt", time.perf_counter(), 0.05)
    await pulse.beat()
    assert [report.attained for report in pulse.telemetry().slo] == [True]
    engine.silent = True
    latency.add("tbt", time.perf_counter(), 3.0)
    with pytest.raises(TimeoutError):
        await pulse.beat()
    assert [report.attained for report in pulse.telemetry().slo] == [False]
    assert pulse.telemetry().tbt.p99_s > 0.1
    labels = {"metric": "tbt", "statistic": "p99"}
    assert metrics.registry.get_sample_value("weir_slo_attained", labels) == 0


async def test_what_engine_and_client_see_alike_is_no_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a burst of slow tokens, too, and whatever the statistic is."""
    now_s = 1000.0
    monkeypatch.setattr("weir_agent.pulse.time.perf_counter", lambda: now_s)
    recorder, latency, engine = Recorder(), OnlineLatency(), FakeEngine()

    async def report() -> dict[str, object]:
        return recorder.report(now_s)

    engine.telemetry = report  # type: ignore[method-assign]
    slos = tuple(
        SloSetting(metric=metric, statistic=statistic, threshold_s=0.1)
        for metric, statistic in (("tbt", "p99"), ("tpot", "mean"))
    )
    pulse = EnginePulse(
        engine, slos=slos, latency=latency, metrics=AgentMetrics(), on_slots=lambda _slots: None
    )
    for number in range(20_000):
        now_s = 1000.0 + number / 400
        seen_s = 0.09 if number < 12_000 else 0.01 + number % 10 / 10_000
        recorder.tbt.add(now_s, seen_s)
        recorder.tpot.add(now_s, seen_s)
        latency.add("tbt", now_s, seen_s)
        latency.add("tpot", now_s, seen_s)
    await pulse.beat()
    assert engine.policies[-1]["client_delay_s"] == pytest.approx(
        {"tbt_p99": 0.0, "tpot_mean": 0.0}
    )


@pytest.mark.parametrize("step_s", [2.5, 14.0])
def test_an_engine_whose_steps_outlast_a_beat_is_not_silent(step_s: float) -> None:
    """It answers when its step ends, and that was heard only if a beat waited just then."""

    async def main(clock: Clock) -> None:
        engine = FakeEngine()
        engine.step_s = step_s
        told: list[int] = []
        async with beating(engine, clock, told.append) as pulse:
            for _ in range(120):
                await asyncio.sleep(1)
                assert clock() - pulse.answered_s <= step_s + 2 * PERIOD_S
            assert told  # how many lines it may run

    run_virtual(main)


def test_silence_counts_from_the_last_answer_until_the_next() -> None:
    async def main(clock: Clock) -> None:
        engine = FakeEngine()
        async with beating(engine, clock) as pulse:
            await asyncio.sleep(5)
            assert clock() - pulse.answered_s <= PERIOD_S
            engine.silent = True
            await asyncio.sleep(60)
            assert 60 - PERIOD_S <= clock() - pulse.answered_s <= 60 + PERIOD_S
            engine.silent = False
            await asyncio.sleep(2 * PERIOD_S)
            assert clock() - pulse.answered_s <= PERIOD_S

    run_virtual(main)


def test_what_a_pod_serves_a_second_does_not_depend_on_when_it_syncs() -> None:
    """Reports and syncs are out of step: between two syncs may be no report, or two."""

    async def main(clock: Clock) -> None:
        engine = FakeEngine()
        began_s, asked = clock(), engine.telemetry

        async def steady() -> Mapping[str, Any]:
            return {**await asked(), "offline_served_tokens": int(1000 * (clock() - began_s))}

        engine.telemetry = steady  # type: ignore[method-assign]
        engine.step_s = 0.4  # a report every 1.4 s
        async with beating(engine, clock) as pulse:
            await asyncio.sleep(10)
            pulse.telemetry()
            rates = []
            for _ in range(30):
                await asyncio.sleep(1)
                told = pulse.telemetry()
                rates.append(told.offline_served_tokens / told.window_s)
            assert rates == pytest.approx([1000.0] * 30, rel=0.01)

    run_virtual(main)
