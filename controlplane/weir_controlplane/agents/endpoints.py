"""Syncs of agents over HTTP (docs/protocol.md), and the fleet for operators."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response

from weir_controlplane.agents.bodies import read_body
from weir_controlplane.agents.queue import queued_batches
from weir_controlplane.agents.registry import AgentEntry, policy_view
from weir_controlplane.agents.runtime import Runtime
from weir_controlplane.agents.schemas import (
    AgentList,
    AgentModel,
    AgentView,
    FailingBatch,
    PolicyReply,
    QueueList,
    SyncRequest,
)
from weir_controlplane.agents.service import AgentService
from weir_controlplane.batches.failing import read_failing
from weir_controlplane.dispatch.leases import held_chunks
from weir_controlplane.errors import (
    InvalidRequestError,
    PermissionDeniedError,
)
from weir_controlplane.http import PlainRoute
from weir_controlplane.keys.auth import AdminDep, agent_of
from weir_controlplane.services import ServicesDep

MAX_ID = 253


def agents_router(runtime: Runtime) -> APIRouter:
    """The routes, answered by the runtime's agent service."""
    router = APIRouter(prefix="/internal/v1")

    async def sync(request: Request) -> Response:
        """Answers a sync.

        Raises:
            PermissionDeniedError: the key or token is another agent's, or another service's.
            InvalidRequestError: the id is too long.
        """
        caller = await agent_of(request)
        agent_id = request.path_params["agent_id"]
        if caller.agent_id not in {None, agent_id}:
            raise PermissionDeniedError(f"this key is for agent {caller.agent_id}")
        if len(agent_id) > MAX_ID:
            raise InvalidRequestError(f"agent_id: at most {MAX_ID} characters", param="agent_id")
        body = await read_body(request, SyncRequest)
        if caller.service not in {None, body.service}:
            raise PermissionDeniedError(
                f"service: this pod belongs to {caller.service}", param="service"
            )
        reply = await runtime.agents.sync(agent_id, body)
        return Response(reply.model_dump_json(), media_type="application/json")

    # A thousand of these come a second.
    router.add_api_route(
        "/agents/{agent_id}/sync", sync, methods=["POST"], route_class_override=PlainRoute
    )

    @router.get("/agents")
    async def agents(_caller: AdminDep, services: ServicesDep) -> AgentList:
        """Every agent that has synced lately, with its last telemetry and policy."""
        async with services.database.read() as session:
            held = await held_chunks(session)
        service = runtime.agents
        live = sorted(service.registry.alive(service.clock_s()), key=lambda item: item.agent_id)
        return AgentList(data=[_view(service, entry, held) for entry in live])

    @router.get("/queue")
    async def queue(_caller: AdminDep, services: ServicesDep) -> QueueList:
        """Every running batch, and why one gets nothing; batches that fail and are tried again."""
        async with services.database.read() as session:
            failing = await read_failing(session)
        return QueueList(
            data=queued_batches(runtime.agents, services.outlook),
            failing=[FailingBatch.model_validate(item, from_attributes=True) for item in failing],
        )

    return router


def _view(service: AgentService, entry: AgentEntry, held: Mapping[str, int]) -> AgentView:
    paused_s = None if entry.paused_until is None else entry.paused_until - service.time.now_s()
    return AgentView(
        agent_id=entry.agent_id,
        service=entry.service,
        incarnation=entry.incarnation,
        state=entry.state,
        models=[AgentModel(name=name, revision=value) for name, value in entry.models.items()],
        room=entry.room,
        held_chunks=held.get(entry.agent_id, 0),
        paused_s=paused_s if paused_s is not None and paused_s > 0 else None,
        last_sync_age_s=max(0.0, service.clock_s() - entry.seen_at),
        telemetry=entry.telemetry,
        policy=None
        if entry.policy is None
        else PolicyReply.model_validate(policy_view(entry.policy)),
    )
