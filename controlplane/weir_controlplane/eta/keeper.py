"""Keeps the outlook of running batches and its metrics current, in every replica for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from weir_controlplane.agents.queue import fleet, reasons_of
from weir_controlplane.agents.service import AgentService
from weir_controlplane.dispatch.batch_view import BatchView
from weir_controlplane.dispatch.order import class_by_time
from weir_controlplane.eta import metrics
from weir_controlplane.eta.outlook import BatchOutlook, Outlook
from weir_controlplane.eta.pools import FleetNow, Pools
from weir_controlplane.eta.predict import Pool, Remaining, least, margin_s, seconds_to_end
from weir_controlplane.eta.reading import Work, read_work
from weir_controlplane.eta.standstill import Standstill
from weir_controlplane.store.database import clock_s

MAX_SHOWN = 100  # batches with metrics of their own: those with the least margin


class OutlookKeeper:
    """Works out when batches will end."""

    def __init__(self, outlook: Outlook, *, chunk_tokens: int) -> None:
        self._outlook = outlook
        self._pools = Pools(chunk_tokens=chunk_tokens)
        self._shown: set[str] = set()
        self._standstill = Standstill()

    async def update(self, agents: AgentService) -> None:
        """Looks at the queue, the fleet and what was committed, and expects anew."""
        running = dict(agents.view.batches)
        async with agents.database.read() as session:
            now_s = await clock_s(session)
            work = await read_work(session, list(running), now_s)
        pods = fleet(agents.registry, agents.clock_s(), now_s)
        reasons = reasons_of(agents, running.values(), pods)
        waiting = {key for key, reason in reasons.items() if reason is not None}
        fleet_now = FleetNow(
            pods=[pod for pod in pods if pod.takes_lines],
            entries=list(agents.registry.alive(agents.clock_s())),
            bindings=agents.view.bindings,
        )
        ends = await self._ends(running.values(), waiting, work, fleet_now, now_s)
        able = {key: reason is None for key, reason in reasons.items()}
        stuck = self._standstill.stuck(able, work.committed_at, agents.clock_s())
        self._outlook.batches = {
            key: BatchOutlook(
                end_at=ends[key],
                eta_at=ends[key] if reasons[key] is None else None,
                waiting_reason=reasons[key],
                deadline_at=work.deadline_at.get(key, batch.expires_at),
                stuck=key in stuck,
            )
            for key, batch in running.items()
        }
        self._show(work, now_s)

    async def _ends(
        self,
        running: Collection[BatchView],
        waiting: Collection[str],
        work: Work,
        fleet_now: FleetNow,
        now_s: float,
    ) -> dict[str, float]:
        """When each is expected to end; those ``waiting`` for a pod keep nobody else waiting."""
        by_model: dict[str, list[BatchView]] = {}
        for batch in running:
            by_model.setdefault(batch.model, []).append(batch)
        ends: dict[str, float] = {}
        rates: dict[str, float] = {}
        for model, batches in by_model.items():
            usable = fleet_now.services(model, batches)
            pools = self._pools.of(model, usable.values(), fleet_now, work.rates)
            rates[model] = sum(pool.tokens_per_s for pool in pools)
            left = [
                Remaining(
                    batch_id=batch.batch_id,
                    tenant_id=batch.tenant_id,
                    # A batch that has waited long gets a chunk for it, and no more.
                    rank=class_by_time(batch.waiting(), now_s),
                    priority=batch.priority,
                    created_at=batch.created_at,
                    tokens=work.remaining_tokens.get(batch.batch_id, 0.0),
                    services=usable[batch.batch_id],
                )
                for batch in batches
            ]
            # Tens of thousands of batches take seconds, in which others are to be answered.
            after_s = await asyncio.to_thread(_seconds_to_end, left, pools, waiting)
            ends |= {key: now_s + seconds for key, seconds in after_s.items()}
        metrics.RATE.clear()
        for model, rate in rates.items():
            metrics.RATE.labels(model=model).set(rate)
        return ends

    def _show(self, work: Work, now_s: float) -> None:
        outlook = self._outlook.batches
        margins = {
            key: margin_s(item.end_at, deadline_at=item.deadline_at, now_s=now_s)
            for key, item in outlook.items()
        }
        metrics.AT_RISK.set(sum(margin < 0 for margin in margins.values()))
        # None is both: without its input a batch has a reason not to run.
        idle = {"running": sum(item.stuck for item in outlook.values())}
        for stage, failing in work.failing.items():
            metrics.STUCK.labels(stage=stage).set(failing + idle.get(stage, 0))
        shown = set(least(margins, MAX_SHOWN))
        for key in self._shown - shown:
            metrics.END.remove_by_labels({"batch": key})
            metrics.MARGIN.remove_by_labels({"batch": key})
        for key in shown:
            metrics.END.labels(batch=key).set(outlook[key].end_at)
            metrics.MARGIN.labels(batch=key).set(margins[key])
        self._shown = shown
        metrics.LEVELS.told()


def _seconds_to_end(
    batches: list[Remaining], pools: list[Pool], waiting: Collection[str]
) -> dict[str, float]:
    after_s = seconds_to_end(batches, pools)
    return after_s | seconds_to_end([it for it in batches if it.batch_id not in waiting], pools)
