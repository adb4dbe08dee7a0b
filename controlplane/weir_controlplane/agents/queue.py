"""The queue and the fleet as operators see them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from weir_controlplane.agents.registry import Registry
from weir_controlplane.agents.schemas import QueuedBatch
from weir_controlplane.agents.service import AgentService
from weir_controlplane.dispatch import metrics
from weir_controlplane.dispatch.batch_view import BatchView
from weir_controlplane.dispatch.reasons import REASONS, FleetPod, Reason, waiting_reason
from weir_controlplane.eta.outlook import BatchOutlook, Outlook
from weir_controlplane.eta.predict import is_missed


def fleet(registry: Registry, now_s: float, db_now_s: float) -> list[FleetPod]:
    """The live pods."""
    return [
        FleetPod(
            service=entry.service,
            models=entry.models,
            serving=entry.state == "serving",
            paused=entry.paused_until is not None and entry.paused_until > db_now_s,
            crowded=entry.is_crowded(now_s),
        )
        for entry in registry.alive(now_s)
    ]


def queued_batches(agents: AgentService, outlook: Outlook | None = None) -> list[QueuedBatch]:
    """Running batches with what is open and out of them, and why one gets nothing."""
    expected = {} if outlook is None else outlook.batches
    now_s = agents.time.now_s()
    pods = fleet(agents.registry, agents.clock_s(), now_s)
    reasons = reasons_of(agents, agents.view.batches.values(), pods)
    return [
        QueuedBatch(
            batch_id=batch.batch_id,
            model=batch.model,
            revision=batch.revision,
            open_chunks=batch.open_count,
            open_lines=batch.open_lines,
            leased_chunks=len(batch.out),
            solo_chunks=len(batch.solo),
            expires_in_s=batch.expires_at - now_s,
            reason=reasons[batch.batch_id],
            **_expectation(expected.get(batch.batch_id), now_s),
        )
        for batch in agents.view.batches.values()
    ]


def _expectation(item: BatchOutlook | None, now_s: float) -> dict[str, Any]:
    if item is None:
        return {}
    missed = is_missed(item.end_at, deadline_at=item.deadline_at, now_s=now_s)
    return {"eta_at": item.eta_at, "predicted_miss": missed, "stuck": item.stuck}


def reasons_of(
    agents: AgentService, batches: Iterable[BatchView], pods: Collection[FleetPod]
) -> dict[str, Reason | None]:
    """Why no pod that its tenant may use can take a batch's chunks, by batch; None when one can.

    Batches that want the same have the same pods looked at once: there may be thousands of both.
    """
    allowed = agents.view.bindings.may_use
    known: dict[tuple[str | None, ...], Reason | None] = {}
    found: dict[str, Reason | None] = {}
    for batch in batches:
        wanted = (batch.tenant_id, batch.model, batch.revision, batch.service)
        if wanted not in known:
            known[wanted] = waiting_reason(
                model=batch.model,
                revision=batch.revision,
                service=batch.service,
                fleet=[pod for pod in pods if allowed(batch.tenant_id, pod.service)],
            )
        found[batch.batch_id] = "InputMissing" if batch.input_missing else known[wanted]
    return found


class QueueGauges:
    """Sets the gauges of the queue."""

    @staticmethod
    def update(agents: AgentService) -> None:
        """Takes over the queue as this replica sees it."""
        queued = queued_batches(agents)
        metrics.CHUNKS.labels(state="open").set(sum(item.open_chunks for item in queued))
        metrics.CHUNKS.labels(state="leased").set(sum(item.leased_chunks for item in queued))
        metrics.SUSPECT_CHUNKS.set(sum(item.solo_chunks for item in queued))
        for reason in REASONS:
            metrics.WAITING.labels(reason=reason).set(sum(item.reason == reason for item in queued))
        now_s = agents.time.now_s()
        ages = [
            now_s - batch.created_at for batch in agents.view.batches.values() if batch.open_count
        ]
        metrics.QUEUE_AGE.set(max(ages, default=0.0))
        metrics.LEVELS.told()
