"""The agent protocol over HTTP (docs/protocol.md), and the fleet for operators."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ValidationError

from weir_controlplane.agents.queue import queued_batches
from weir_controlplane.agents.registry import AgentEntry, policy_view
from weir_controlplane.agents.runtime import BATCHES_TOPIC, Runtime
from weir_controlplane.agents.schemas import (
    AgentList,
    AgentView,
    CommitReply,
    CommitRequest,
    FailingBatch,
    PolicyReply,
    QueueList,
    ServedModel,
    SyncRequest,
    UploadReply,
)
from weir_controlplane.agents.service import CHUNKS_TOPIC, AgentService
from weir_controlplane.batches.failing import read_failing
from weir_controlplane.dispatch.bounds import MAX_FETCH_LINES
from weir_controlplane.dispatch.commits import Commit, commit
from weir_controlplane.dispatch.lines import fetch_lines
from weir_controlplane.dispatch.uploads import ResultUpload, store_result
from weir_controlplane.errors import (
    InvalidRequestError,
    PayloadTooLargeError,
    PermissionDeniedError,
)
from weir_controlplane.http import PlainRoute
from weir_controlplane.keys.auth import AdminDep, AgentDep, agent_of
from weir_controlplane.services import ServicesDep

MAX_BODY_BYTES = 1 << 20
MAX_ID = 253
Attempt = Annotated[int, Query(ge=1, le=2**53)]
Nonce = Annotated[str, Query(min_length=1, max_length=128)]
Body = TypeVar("Body", bound=BaseModel)


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
        body = await _read(request, SyncRequest)
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
    async def agents(_caller: AdminDep) -> AgentList:
        """Every agent that has synced lately, with its last telemetry and policy."""
        service = runtime.agents
        live = sorted(service.registry.alive(service.clock_s()), key=lambda item: item.agent_id)
        return AgentList(data=[_view(service, entry) for entry in live])

    @router.get("/queue")
    async def queue(_caller: AdminDep, services: ServicesDep) -> QueueList:
        """Every running batch, and why one gets nothing; batches that fail and are tried again."""
        async with services.database.read() as session:
            failing = await read_failing(session)
        return QueueList(
            data=queued_batches(runtime.agents, services.outlook),
            failing=[FailingBatch.model_validate(item, from_attributes=True) for item in failing],
        )

    _add_chunk_routes(router, runtime)
    return router


def _add_chunk_routes(router: APIRouter, runtime: Runtime) -> None:
    @router.get("/chunks/{chunk_id}/lines")
    async def lines(
        chunk_id: str,
        services: ServicesDep,
        _caller: AgentDep,
        attempt: Attempt,
        nonce: Nonce,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_FETCH_LINES)] = MAX_FETCH_LINES,
    ) -> Response:
        """Input lines of a leased chunk, as NDJSON."""
        content = await fetch_lines(
            services.database,
            services.storage,
            chunk_id=chunk_id,
            attempt=attempt,
            nonce=nonce,
            after=after,
            limit=limit,
        )
        return Response(content, media_type="application/x-ndjson")

    @router.put("/chunks/{chunk_id}/results", status_code=201)
    async def results(
        chunk_id: str,
        request: Request,
        services: ServicesDep,
        _caller: AgentDep,
        attempt: Attempt,
        nonce: Nonce,
        sha256: str,
        lines: Annotated[int | None, Query(ge=0)] = None,
    ) -> UploadReply:
        """Stores the results of a leased chunk; the same again answers the same id."""
        upload = ResultUpload(
            chunk_id=chunk_id, attempt=attempt, nonce=nonce, sha256=sha256, lines=lines
        )
        upload_id = await store_result(
            services.database, services.storage, upload, request.stream()
        )
        return UploadReply(upload_id=upload_id)

    @router.post("/chunks/{chunk_id}/commit")
    async def commit_chunk(
        chunk_id: str, request: Request, services: ServicesDep, _caller: AgentDep
    ) -> CommitReply:
        """Commits uploaded results of a leased chunk."""
        body = await _read(request, CommitRequest)
        wish = Commit(
            chunk_id=chunk_id,
            attempt=body.attempt,
            nonce=body.nonce,
            upload_id=body.upload_id,
            ranges=tuple(body.lines),
            final=body.final,
        )
        done = await commit(services.database, wish)
        runtime.agents.closed(chunk_id, done.batch_id)
        if done.more:
            await services.nudge.send(CHUNKS_TOPIC)
        if done.finished:
            await services.nudge.send(BATCHES_TOPIC)
        return CommitReply(state=done.state)


async def _read(request: Request, kind: type[Body]) -> Body:
    """The body of a request.

    Raises:
        InvalidRequestError: it is not what it should be; names the field.
        PayloadTooLargeError: it is over a megabyte.
    """
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > MAX_BODY_BYTES:
            raise PayloadTooLargeError(f"the body is over {MAX_BODY_BYTES} bytes")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"]) or None
        named = f"{param}: " if param else ""
        raise InvalidRequestError(
            f"{named}{first['msg']}", param=param, code="invalid_value"
        ) from None


def _view(service: AgentService, entry: AgentEntry) -> AgentView:
    paused_s = None if entry.paused_until is None else entry.paused_until - service.time.now_s()
    return AgentView(
        agent_id=entry.agent_id,
        service=entry.service,
        incarnation=entry.incarnation,
        state=entry.state,
        models=[ServedModel(name=name, revision=value) for name, value in entry.models.items()],
        room=entry.room,
        held_chunks=len(entry.holds),
        paused_s=paused_s if paused_s is not None and paused_s > 0 else None,
        last_sync_age_s=max(0.0, service.clock_s() - entry.seen_at),
        telemetry=entry.telemetry,
        policy=None
        if entry.policy is None
        else PolicyReply.model_validate(policy_view(entry.policy)),
    )
