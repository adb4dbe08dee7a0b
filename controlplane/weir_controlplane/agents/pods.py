"""Forecast and policy of a pod, as often as they are worth it."""

from __future__ import annotations

from collections.abc import Sequence

from weir_controlplane.agents import metrics
from weir_controlplane.agents.history import DemandLog
from weir_controlplane.agents.registry import AgentEntry
from weir_controlplane.agents.schemas import Telemetry
from weir_controlplane.forecast.choose import Score, forecast, score_all
from weir_controlplane.forecast.demand import BUCKET_S
from weir_controlplane.forecast.methods import Method
from weir_controlplane.policy.decide import PodKv, Policy, PolicyLimits, decide

SCORE_EVERY_S = 60.0


class PodPolicies:
    """Decides policies from the demand log. Times are the database's, in seconds."""

    def __init__(self, log: DemandLog, *, methods: Sequence[Method], limits: PolicyLimits) -> None:
        self._log = log
        self._methods = methods
        self._limits = limits

    def decide(self, entry: AgentEntry, now_s: float) -> Policy | None:
        """The pod's policy now; None while nothing is known of its KV blocks."""
        told = entry.telemetry
        if told is None or told.total_blocks == 0:
            return None
        self._forecast(entry, now_s, told.total_blocks)
        entry.policy = decide(pod_kv(told), entry.forecast, self._limits)
        return entry.policy

    def _forecast(self, entry: AgentEntry, now_s: float, total_blocks: int) -> None:
        if abs(now_s - entry.forecast_at) < BUCKET_S:
            return
        pod = self._log.pod(entry.agent_id)
        if pod is None:
            return
        if now_s < entry.forecast_at:  # the clock was set back
            pod.forget_after(now_s)
        entry.forecast_at = now_s
        history = pod.history()
        if abs(now_s - entry.scored_at) >= SCORE_EVERY_S:
            entry.scored_at = now_s
            before = entry.scores
            entry.scores = score_all(self._methods, history, now_s, total_blocks=total_blocks)
            _show(entry, before)
        entry.forecast = forecast(
            self._methods, history, now_s, total_blocks=total_blocks, scores=entry.scores
        )


def _show(entry: AgentEntry, before: Sequence[Score]) -> None:
    pod = (entry.service, entry.agent_id)
    for item in entry.scores:
        metrics.COVERAGE.labels(*pod, item.method).set(item.coverage)
        metrics.WASTE.labels(*pod, item.method).set(item.waste)
    for name in {item.method for item in before} - {item.method for item in entry.scores}:
        for gauge in (metrics.COVERAGE, metrics.WASTE):
            gauge.remove(*pod, name)


def pod_kv(told: Telemetry) -> PodKv:
    """KV blocks by what a pod told last."""
    return PodKv(
        total_blocks=told.total_blocks,
        online_kv_blocks=told.online_kv_blocks,
        online_reuse_blocks=told.online_reuse_blocks,
        offline_kv_blocks=told.offline_kv_blocks,
        offline_running=told.offline_running,
    )
