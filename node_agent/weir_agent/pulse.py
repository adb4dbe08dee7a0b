"""The agent's heartbeat with its engine: policy in, telemetry out, once a second; hangs noticed.

Runs whether or not there is a control plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import structlog

from weir_agent import wire
from weir_agent.engine import Engine, EngineGoneError
from weir_agent.latency import COMPARED_VALUES, OnlineLatency, Summary
from weir_agent.metrics import AgentMetrics
from weir_agent.policy import (
    ONLINE_ONLY,
    ActivePolicy,
    DemandHistory,
    Lease,
    active_policy,
    client_delays,
)
from weir_agent.settings import SloSetting
from weir_agent.waiting import wait_up_to

log = structlog.get_logger(__name__)

PERIOD_S = 1.0
ANSWER_S = 2.0  # how long a beat waits
_SUMS = (
    "online_tokens",
    "offline_served_tokens",
    "offline_computed_tokens",
    "steps",
    "preemptions",
)
_LEVELS = (
    "total_blocks",
    "block_size_tokens",
    "online_kv_blocks",
    "online_reuse_blocks",
    "offline_kv_blocks",
    "free_kv_blocks",
    "online_running",
    "offline_running",
    "online_waiting",
    "offline_waiting",
)


class EnginePulse:
    """What the agent knows of its engine, and the policy that holds there."""

    def __init__(
        self,
        engine: Engine,
        *,
        slos: tuple[SloSetting, ...],
        latency: OnlineLatency,
        metrics: AgentMetrics,
        on_slots: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_slots`` is told how many offline requests may run."""
        self._engine = engine
        self._slos = slos
        self._latency = latency
        self._metrics = metrics
        self._on_slots = on_slots
        self._sources: tuple[str, ...] = ()
        self._clock = clock
        self._lease: Lease | None = None
        self._beat_now = asyncio.Event()
        self._demand = DemandHistory()
        self._asked: asyncio.Task[Mapping[str, Any]] | None = None
        self._report: Mapping[str, Any] = {}
        self._reported: Mapping[str, Any] = {}  # what the last sync told of
        self._report_s = self._reported_s = clock()
        self._window_s = 0.0
        self._sums = dict.fromkeys(_SUMS, 0)
        self._summaries: dict[str, Summary] = {}
        self._compared: dict[str, Summary] = {}
        self._slo_reports: tuple[wire.SloReport, ...] = ()
        self.answered_s = clock()
        self.active: ActivePolicy = ONLINE_ONLY
        for slo in slos:
            metrics.slo_threshold.labels(slo.metric, slo.statistic).set(slo.threshold_s)

    def expect_policies(self) -> None:
        """There is a control plane: from now on it is shown whose policy holds."""
        self._sources = ("control_plane", "forecast", "online_only")

    def on_policy(self, lease: Lease) -> None:
        """The control plane named a policy; a new one goes to the engine at once."""
        if self._lease is None or self._lease.policy != lease.policy:
            self._beat_now.set()
        self._lease = lease

    async def run(self) -> None:
        """Beats until it is cancelled or the engine is gone."""
        try:
            await self._run()
        finally:
            if self._asked is not None:
                self._asked.cancel()

    async def _run(self) -> None:
        while not self._engine.dead:
            try:
                await self.beat()
            except TimeoutError:
                log.warning("engine.silent", silent_s=round(self._clock() - self.answered_s, 1))
            except EngineGoneError:
                return
            except Exception:  # a report that fails must not stop online traffic
                self.answered_s = self._clock()
                log.exception("engine.exchange_failed")
            await wait_up_to(self._beat_now, PERIOD_S)
            self._beat_now.clear()

    async def beat(self) -> None:
        """One exchange with the engine.

        Raises:
            TimeoutError: the engine did not answer yet.
            EngineGoneError: the engine is dead.
            PolicyRefusedError: the policy is not valid.
        """
        self._measure()  # clients wait longest while the engine is silent
        self._report = await self._answer()
        now_s = self.answered_s = self._report_s = self._clock()
        self._demand.add(now_s, int(self._report.get("online_kv_blocks", 0)))
        active = active_policy(
            self._lease,
            now_s,
            total_blocks=int(self._report.get("total_blocks", 0)),
            history=self._demand.values(),
            reuse_blocks=int(self._report.get("online_reuse_blocks", 0)),
        )
        if active.source != self.active.source:
            log.info("policy.source", source=active.source, was=self.active.source)
        self.active = active
        # One whose steps outlast a beat takes it at the end of the next, and is not waited for.
        with contextlib.suppress(TimeoutError):
            await self._engine.set_policy(active.message(self._client_delays()))
        self._on_slots(active.offline_seq_slots)
        self._show(now_s)

    async def _answer(self) -> Mapping[str, Any]:
        """The engine's report: to the question of an earlier beat, if that had none until now.

        Asked anew each time, an engine with steps of many seconds would be found silent whenever
        they end while nobody waits.

        Raises:
            TimeoutError: there is none yet.
        """
        if self._asked is None:
            self._asked = asyncio.ensure_future(self._engine.telemetry())
        await asyncio.wait({self._asked}, timeout=ANSWER_S)
        if not self._asked.done():
            raise TimeoutError
        asked, self._asked = self._asked, None
        return asked.result()

    @property
    def offline_stands_still(self) -> bool:
        """Lines wait in the engine and none runs there, by its last report."""
        report = self._report
        return int(report.get("offline_waiting", 0)) > 0 == int(report.get("offline_running", 0))

    def telemetry(self) -> wire.Telemetry:
        """What the next sync reports: levels of the last report, and what was done until then.

        That is from report to report, for syncs come at other times: between two of them may be no
        report, or two. Where there is no new one the last window is told again.
        """
        report = self._report
        if self._report_s > self._reported_s:
            self._sums = {
                name: max(0, int(report.get(name, 0)) - int(self._reported.get(name, 0)))
                for name in _SUMS
            }
            self._window_s = self._report_s - self._reported_s
            self._reported, self._reported_s = report, self._report_s
        levels = {name: max(0, int(report.get(name, 0))) for name in _LEVELS}
        step_times = {
            name: float(report.get(name, 0))
            for name in ("step_mean_s", "step_p99_s", "predictor_mape")
        }
        latencies = {name: asdict(summary) for name, summary in self._summaries.items()}
        return wire.Telemetry.model_validate(
            {
                "window_s": self._window_s,
                "slo": self._slo_reports,
                **levels,
                **self._sums,
                **step_times,
                **latencies,
            }
        )

    def _measure(self) -> None:
        """Sums up online latency once a beat: the loop that serves it must not wait for that."""
        now_s = time.perf_counter()
        windows = self._latency.windows
        self._summaries = {name: window.summary(now_s) for name, window in windows.items()}
        # As many values as the engine has: of a burst that is over the longer window shows more.
        self._compared = {
            slo.metric: windows[slo.metric].summary(now_s, newest=COMPARED_VALUES)
            for slo in self._slos
        }
        reports = []
        for slo in self._slos:
            measured_s = windows[slo.metric].statistic(now_s, slo.statistic)
            if measured_s is not None:
                reports.append(
                    wire.SloReport(
                        metric=slo.metric,
                        statistic=slo.statistic,
                        threshold_s=slo.threshold_s,
                        measured_s=measured_s,
                        attained=measured_s <= slo.threshold_s,
                    )
                )
        self._slo_reports = tuple(reports)
        # Kept, the last minute of traffic would count for as long as nobody asks anything.
        self._metrics.slo_measured.clear()
        self._metrics.slo_attained.clear()
        for report in reports:
            labels = (report.metric, report.statistic)
            self._metrics.slo_measured.labels(*labels).set(report.measured_s)
            self._metrics.slo_attained.labels(*labels).set(float(report.attained))

    def _client_delays(self) -> dict[str, float]:
        in_engine = {name: self._report.get(name) or {} for name in ("ttft", "tbt", "tpot")}
        return client_delays(self._slos, self._compared, in_engine)

    def _show(self, now_s: float) -> None:
        metrics, active = self._metrics, self.active
        metrics.engine_report(self._report)
        metrics.kv_threshold.set(active.offline_kv_blocks)
        metrics.slots.set(active.offline_seq_slots)
        metrics.step_budget.set(active.step_budget_s or 0.0)
        if self._lease is not None:
            metrics.policy_age.set(now_s - self._lease.sent_s)
        for source in self._sources:
            metrics.policy_source.labels(source).set(float(source == active.source))
