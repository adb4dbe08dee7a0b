"""What travels, and what `dispatch` deals with: one made of the other."""

from __future__ import annotations

from weir_controlplane.agents.schemas import Lease, SyncRequest
from weir_controlplane.dispatch.bounds import LEASE_S
from weir_controlplane.dispatch.placement import Room
from weir_controlplane.dispatch.work import Grant, LeaseRef, ReportedDeath, Served, SyncWork


def lease_of(grant: Grant, *, service: str, remaining_lines: int) -> Lease:
    """A grant as its holder is told of it."""
    return Lease(
        chunk_id=grant.chunk_id,
        attempt=grant.attempt,
        nonce=grant.nonce,
        lease_s=LEASE_S,
        batch_id=grant.batch_id,
        tenant=grant.tenant_id,
        service=service,
        model=grant.model,
        revision=grant.revision,
        endpoint=grant.endpoint,
        lines=grant.lines,
        bytes=grant.bytes,
        tokens=grant.tokens,
        density=grant.density,
        prefix_group=grant.prefix_group,
        remaining_lines=remaining_lines,
        deadline_s=grant.deadline_s,
        solo=grant.solo,
    )


def room_of(request: SyncRequest) -> Room:
    """What the agent can still take."""
    return Room(
        lines=request.room.lines,
        tokens=request.room.tokens,
        result_bytes=request.room.result_bytes,
        line_result_bytes=request.room.line_result_bytes,
        idle=not request.chunks,
    )


def work_of(
    agent_id: str, request: SyncRequest, *, wanted: tuple[str, ...], default_tenant: str | None
) -> SyncWork:
    """What a sync asks of the database. ``wanted``: chunks that were planned for the agent."""
    return SyncWork(
        agent_id=agent_id,
        boot_id=request.boot_id,
        incarnation=request.incarnation,
        sequence=request.sequence,
        service=request.service,
        models=tuple(
            Served(name=item.name, revision=item.revision, max_model_len=item.max_model_len)
            for item in request.models
        ),
        state=request.state,
        held=tuple(
            LeaseRef(
                chunk_id=item.chunk_id,
                attempt=item.attempt,
                nonce=item.nonce,
                lines_done=item.lines_done,
            )
            for item in request.chunks
        ),
        returned=tuple(
            LeaseRef(chunk_id=item.chunk_id, attempt=item.attempt, nonce=item.nonce)
            for item in request.returned
        ),
        deaths=tuple(
            ReportedDeath(
                death_id=item.death_id,
                kind=item.kind,
                solo=item.solo,
                resident=tuple((line.chunk_id, line.attempt, line.line) for line in item.resident),
            )
            for item in request.deaths
        ),
        wanted=wanted,
        most_lines=room_of(request).result_lines,
        default_tenant=default_tenant,
    )
