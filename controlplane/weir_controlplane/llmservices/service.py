"""LLMServices in the database: which pods there are, and what their agents last said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import structlog
from sqlalchemy import delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.agents.schemas import SloState
from weir_controlplane.dispatch.leases import held_chunks
from weir_controlplane.dispatch.watch import release_agent
from weir_controlplane.keys.service_accounts import agent_id_of
from weir_controlplane.llmservices.schemas import PodStatus, PutService, ServiceStatus
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.fleet_models import Agent, ServedModel
from weir_controlplane.store.kubernetes_models import LlmService, ServicePod
from weir_controlplane.store.models import Batch, Chunk
from weir_controlplane.store.tenancy import Bindings, read_bindings

TOPIC = "services"
CHUNKS_TOPIC = "chunks"
SAID_LATELY_S = 30.0  # what an agent said before is not shown as if it held
_log = structlog.get_logger(__name__)


async def put_service(services: Services, namespace: str, name: str, body: PutService) -> None:
    """Registers a service and its pods; agents of pods that are gone lose their leases at once."""
    service_id = f"{namespace}/{name}"
    pods = {pod.uid: pod for pod in body.pods}
    async with services.database.transaction() as session:
        await _write(services, session, namespace, name, body)
        removed = await _remove(session, service_id, keep=list(pods))
        # A pod of the same name is the same agent: it adopts what its predecessor held.
        gone = sorted(set(removed) - {pod.name for pod in body.pods})
        known = set(
            (
                await session.execute(
                    select(ServicePod.uid).where(ServicePod.service == service_id)
                )
            ).scalars()
        )
        now_s = await clock_s(session)
        insert = postgresql.insert if services.database.dialect == "postgresql" else sqlite.insert
        new = [
            {"uid": pod.uid, "service": service_id, "name": pod.name, "registered_at": now_s}
            for pod in pods.values()
            if pod.uid not in known
        ]
        if new:
            await session.execute(insert(ServicePod).values(new).on_conflict_do_nothing())
    if removed or new:
        await _changed(services, namespace, gone)


async def remove_service(services: Services, namespace: str, name: str) -> None:
    """Forgets a service with all its pods; without effect when there is none."""
    service_id = f"{namespace}/{name}"
    async with services.database.transaction() as session:
        gone = await _remove(session, service_id, keep=[])
        await session.execute(delete(LlmService).where(LlmService.id == service_id))
    await _changed(services, namespace, gone)


async def _write(
    services: Services, session: AsyncSession, namespace: str, name: str, body: PutService
) -> None:
    insert = postgresql.insert if services.database.dialect == "postgresql" else sqlite.insert
    values = {
        "namespace": namespace,
        "name": name,
        "model": body.model,
        "service_account": body.service_account,
        "updated_at": db_now(),
    }
    # The row is the lock on the service's pods.
    await session.execute(
        insert(LlmService)
        .values(id=f"{namespace}/{name}", **values)
        .on_conflict_do_update(index_elements=["id"], set_=values)
    )


async def _remove(session: AsyncSession, service_id: str, *, keep: Sequence[str]) -> list[str]:
    gone = await session.execute(
        delete(ServicePod)
        .where(ServicePod.service == service_id, ServicePod.uid.not_in(keep))
        .returning(ServicePod.name)
    )
    return sorted(gone.scalars())


async def _changed(services: Services, namespace: str, gone: Sequence[str]) -> None:
    await services.pods.read(services.database)  # first: their tokens are refused from now on
    await services.nudge.send(TOPIC)
    released = 0
    for name in gone:
        released += await release_agent(services.database, agent_id_of(namespace, name))
    if gone:
        _log.info("pods_gone", namespace=namespace, pods=len(gone), chunks=released)
    if released:
        await services.nudge.send(CHUNKS_TOPIC)


async def service_statuses(
    services: Services, session: AsyncSession, service_id: str | None = None
) -> list[ServiceStatus]:
    """Every registered service (or the one named) with what its agents last said."""
    statement = select(LlmService).order_by(LlmService.namespace, LlmService.name)
    pods = select(ServicePod).order_by(ServicePod.name, ServicePod.uid)
    if service_id is not None:
        statement = statement.where(LlmService.id == service_id)
        pods = pods.where(ServicePod.service == service_id)
    rows = list((await session.execute(statement)).scalars())
    by_service: dict[str, list[ServicePod]] = {row.id: [] for row in rows}
    for pod in (await session.execute(pods)).scalars():
        if pod.service in by_service:
            by_service[pod.service].append(pod)
    agents = await _agents(session, service_id)
    held = await held_chunks(session)
    models = await _models(session, service_id)
    waiting = await _waiting_batches(session)
    bindings = await read_bindings(session, services.settings.default_tenant)
    now_s = await clock_s(session)
    found = []
    for row in rows:
        statuses = [_pod(row.namespace, pod, agents, held) for pod in by_service[row.id]]
        count = _waiting_for(row.id, models.get(row.id, frozenset()), waiting, bindings)
        found.append(_status(row, statuses, count, now_s))
    return found


async def _agents(session: AsyncSession, service_id: str | None) -> dict[str, Any]:
    columns: tuple[Any, ...] = (
        *(Agent.agent_id, Agent.service, Agent.state, Agent.telemetry, Agent.policy),
        *(Agent.incarnation, Agent.last_sync_at, (db_now() - Agent.last_sync_at).label("age_s")),
    )
    statement = select(*columns)
    if service_id is not None:
        statement = statement.where(Agent.service == service_id)
    return {row.agent_id: row for row in await session.execute(statement)}


async def _models(session: AsyncSession, service_id: str | None) -> dict[str, set[str]]:
    """The names of the models that each service (or the one named) has served."""
    statement = select(ServedModel.service, ServedModel.name)
    if service_id is not None:
        statement = statement.where(ServedModel.service == service_id)
    found: dict[str, set[str]] = defaultdict(set)
    for service, name in await session.execute(statement):
        found[service].add(name)
    return found


async def _waiting_batches(session: AsyncSession) -> Sequence[Any]:
    """Running batches with open chunks, counted by tenant, model and wanted service."""
    waiting = select(Chunk.batch_id).where(Chunk.state == "open")
    kind = (Batch.tenant_id, Batch.model, Batch.service)
    statement = select(*kind, func.count().label("batches")).where(
        Batch.id.in_(waiting),
        Batch.status == "in_progress",
        Batch.closing_as.is_(None),
        Batch.suspended_at.is_(None),
    )
    return (await session.execute(statement.group_by(*kind))).all()


def _waiting_for(
    service_id: str, models: Collection[str], waiting: Sequence[Any], bindings: Bindings
) -> int:
    return sum(
        row.batches
        for row in waiting
        if row.model in models
        and row.service in {None, service_id}
        and bindings.may_use(row.tenant_id, service_id)
    )


def _pod(
    namespace: str, pod: ServicePod, agents: dict[str, Any], held: dict[str, int]
) -> PodStatus:
    agent_id = agent_id_of(namespace, pod.name)
    row = agents.get(agent_id)
    lately = row if row is not None and row.age_s < SAID_LATELY_S else None
    told: dict[str, Any] = {} if lately is None else lately.telemetry or {}
    policy: dict[str, Any] = {} if lately is None else lately.policy or {}
    window_s = told.get("window_s") or 0.0
    slo = [SloState.model_validate(item) for item in told.get("slo", ())]
    judged = [item.attained for item in slo if item.attained is not None]
    lease_s = policy.get("lease_s")
    return PodStatus(
        uid=pod.uid,
        name=pod.name,
        agent_id=agent_id,
        state=None if lately is None else lately.state,
        last_sync_at=None if row is None else row.last_sync_at,
        held_chunks=held.get(agent_id, 0),
        offline_kv_threshold_blocks=policy.get("offline_kv_blocks"),
        offline_seq_slots=policy.get("offline_seq_slots"),
        step_budget_s=policy.get("step_budget_s"),
        policy_expires_at=None
        if lately is None or lease_s is None
        else lately.last_sync_at + lease_s,
        total_blocks=told.get("total_blocks"),
        online_kv_blocks=told.get("online_kv_blocks"),
        offline_kv_blocks=told.get("offline_kv_blocks"),
        offline_tokens_per_s=told["offline_served_tokens"] / window_s if window_s > 0 else None,
        slo=slo,
        slo_met=all(judged) if judged else None,
    )


def _status(row: LlmService, pods: list[PodStatus], waiting: int, now_s: float) -> ServiceStatus:
    judged = [item.attained for pod in pods for item in pod.slo if item.attained is not None]
    serving = [pod for pod in pods if pod.state == "serving"]
    fresh = [(pod.policy_expires_at or 0.0) > now_s for pod in serving]
    return ServiceStatus(
        namespace=row.namespace,
        name=row.name,
        model=row.model,
        service_account=row.service_account,
        pods=pods,
        slo_attainment=sum(judged) / len(judged) if judged else None,
        offline_tokens_per_s=sum(pod.offline_tokens_per_s or 0.0 for pod in pods),
        policy_fresh=all(fresh) if fresh else None,
        waiting_batches=waiting,
    )
