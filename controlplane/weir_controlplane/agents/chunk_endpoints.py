"""The agent protocol over HTTP (docs/protocol.md): lines, results and commits of leased chunks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from weir_controlplane.agents.bodies import read_body
from weir_controlplane.agents.runtime import BATCHES_TOPIC, Runtime
from weir_controlplane.agents.schemas import CommitReply, CommitRequest, UploadReply
from weir_controlplane.agents.service import CHUNKS_TOPIC
from weir_controlplane.dispatch.bounds import MAX_FETCH_LINES
from weir_controlplane.dispatch.commits import Commit, commit
from weir_controlplane.dispatch.lines import fetch_lines
from weir_controlplane.dispatch.uploads import ResultUpload, store_result
from weir_controlplane.keys.auth import AgentDep
from weir_controlplane.services import ServicesDep

Attempt = Annotated[int, Query(ge=1, le=2**53)]
Nonce = Annotated[str, Query(min_length=1, max_length=128)]


def chunks_router(runtime: Runtime) -> APIRouter:
    """The routes of chunks; the runtime's agent service hears of each that is closed."""
    router = APIRouter(prefix="/internal/v1/chunks/{chunk_id}")
    router.add_api_route("/lines", _lines, methods=["GET"])
    router.add_api_route("/results", _results, methods=["PUT"], status_code=201)

    @router.post("/commit")
    async def commit_chunk(
        chunk_id: str, request: Request, services: ServicesDep, _caller: AgentDep
    ) -> CommitReply:
        """Commits uploaded results of a leased chunk."""
        body = await read_body(request, CommitRequest)
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

    return router


async def _lines(
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


async def _results(
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
    upload_id = await store_result(services.database, services.storage, upload, request.stream())
    return UploadReply(upload_id=upload_id)
