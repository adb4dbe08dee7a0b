"""The beginning of a batch: its input checked, cut into chunks, and opened for leasing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.leases import Work, hold, set_state, state_of
from weir_controlplane.batches.line_reader import LineSource, RawLine, read_lines
from weir_controlplane.batches.losses import hash_of_object
from weir_controlplane.batches.output import UnwantedError
from weir_controlplane.batches.prefix_order import PlannedChunk, plan_chunks
from weir_controlplane.batches.states import LIVE, Event, advance
from weir_controlplane.batches.validation import ContentError, Findings, Rules, validate
from weir_controlplane.errors import MissingObjectError
from weir_controlplane.ids import new_id
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.fleet_models import ServedModel
from weir_controlplane.store.line_index import IndexedLine, pack_hashes, pack_lines
from weir_controlplane.store.models import Batch, Chunk, File, Tenant
from weir_controlplane.store.tenancy import read_bindings

_INSERT_ROWS = 500
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """The outcome of reading the input file."""

    findings: Findings
    chunks: list[PlannedChunk]


async def take_in(services: Services, work: Work, wanted: Callable[[], bool]) -> None:
    """Validates a batch: it fails with its content errors, or its chunks are open.

    Raises:
        LeaseLostError: another replica does this now, or the batch was cancelled.
        UnwantedError: ``wanted`` said no.
        MissingObjectError: the store lacks the input, or has altered it.
    """
    async with services.database.read() as session:
        batch = await session.get_one(Batch, work.batch_id)
        file = await session.get_one(File, batch.input_file_id)
        models = await _models(services, session, batch)
    rules = Rules(
        endpoint=batch.endpoint,
        models=models,
        max_lines=services.settings.max_batch_lines,
        max_json_depth=services.settings.max_json_depth,
        default_output_tokens=services.settings.default_output_tokens,
    )
    checked = await asyncio.to_thread(_check, services, file, rules, wanted)
    if checked.findings.errors:
        # They may have been found before the end: are they those of what its owner has sent?
        found = await hash_of_object(services.storage, file.storage_key, wanted)
        if file.sha256 not in {None, found}:
            raise MissingObjectError("the file is not what was stored")
        await _refuse(services, work, checked.findings.errors)
        return
    await _open(services, work, checked)
    await services.nudge.send("chunks")


async def _models(services: Services, session: AsyncSession, batch: Batch) -> frozenset[str]:
    """What the lines may name: models that pods which the tenant may use serve, or served."""
    if batch.model is not None:  # a BatchJob says so beforehand
        return frozenset({batch.model})
    bindings = await read_bindings(session, services.settings.default_tenant)
    served = select(ServedModel.name, ServedModel.service).distinct()
    if batch.service is not None:
        served = served.where(ServedModel.service == batch.service)
    rows = await session.execute(served)
    names = {name for name, service in rows if bindings.may_use(batch.tenant_id, service)}
    return frozenset(names) | frozenset(services.settings.models)


def _check(services: Services, file: File, rules: Rules, wanted: Callable[[], bool]) -> _Checked:
    lines = read_lines(
        services.storage,
        LineSource(storage_key=file.storage_key, size_bytes=file.size_bytes, sha256=file.sha256),
        bound_bytes=services.settings.max_line_bytes,
    )
    findings = validate(_while_wanted(lines, wanted), rules)
    chunks = plan_chunks(
        findings.lines,
        max_lines=services.settings.chunk_lines,
        max_tokens=services.settings.chunk_tokens,
    )
    return _Checked(findings=findings, chunks=chunks)


def _while_wanted(lines: Iterator[RawLine], wanted: Callable[[], bool]) -> Iterator[RawLine]:
    for line in lines:
        if not wanted():
            raise UnwantedError
        yield line


async def _refuse(services: Services, work: Work, errors: list[ContentError]) -> None:
    async with services.database.transaction() as session:
        batch = await hold(session, work)
        set_state(batch, advance(state_of(batch), Event.CONTENT_REFUSED), await clock_s(session))
        batch.errors = [error.view() for error in errors]
        batch.work_nonce, batch.work_lease_until = None, 0.0
    _log.info("batch_refused", batch_id=work.batch_id, errors=len(errors))


async def _open(services: Services, work: Work, checked: _Checked) -> None:
    async with services.database.transaction() as session:
        # The tenant's row first, as creates do: it is the lock on the quota.
        tenant = await _lock_tenant(session, work)
        batch = await hold(session, work)
        over = await _over_quota(services, session, tenant, checked.findings.tokens)
        now_s = await clock_s(session)
        batch.work_nonce, batch.work_lease_until = None, 0.0
        batch.work_failures, batch.work_error = 0, None
        batch.missing_since, batch.missing_times = None, 0
        if over is not None:
            set_state(batch, advance(state_of(batch), Event.CONTENT_REFUSED), now_s)
            batch.errors = [over.view()]
            return
        set_state(batch, advance(state_of(batch), Event.CONTENT_ACCEPTED), now_s)
        batch.model = checked.findings.model
        batch.total_lines = len(checked.findings.lines)
        batch.queued_tokens = checked.findings.tokens
        await session.execute(delete(Chunk).where(Chunk.batch_id == batch.id))
        rows = [_row(batch.id, place, chunk) for place, chunk in enumerate(checked.chunks)]
        for start in range(0, len(rows), _INSERT_ROWS):
            await session.execute(insert(Chunk), rows[start : start + _INSERT_ROWS])
    _log.info("batch_opened", batch_id=work.batch_id, chunks=len(checked.chunks))


async def _lock_tenant(session: AsyncSession, work: Work) -> Tenant:
    statement = (
        select(Tenant)
        .join(Batch, Batch.tenant_id == Tenant.id)
        .where(Batch.id == work.batch_id)
        .with_for_update(of=Tenant, key_share=True)
    )
    return (await session.execute(statement)).scalar_one()


async def _over_quota(
    services: Services, session: AsyncSession, tenant: Tenant, tokens: int
) -> ContentError | None:
    allowed = tenant.max_queued_tokens or services.settings.tenant_max_queued_tokens
    queued = await session.execute(
        select(func.coalesce(func.sum(Batch.queued_tokens), 0)).where(
            Batch.tenant_id == tenant.id, Batch.status.in_(LIVE)
        )
    )
    used = int(queued.scalar_one())
    if used + tokens <= allowed:
        return None
    return ContentError(
        code="token_limit_exceeded",
        message=f"the batch has about {tokens} tokens, {used} of {allowed} are queued already; "
        "wait for a batch to end or split this one",
    )


def _row(batch_id: str, position: int, chunk: PlannedChunk) -> dict[str, Any]:
    return {
        "id": new_id("chunk_"),
        "batch_id": batch_id,
        "position": position,
        "state": "open",
        "solo": False,
        "prefix_group": chunk.prefix_group,
        "density": chunk.density,
        "tokens": chunk.tokens,
        "lines": len(chunk.lines),
        "size_bytes": sum(line.length_bytes for line in chunk.lines),
        "line_index": pack_lines(
            IndexedLine(
                line=line.line,
                offset_bytes=line.offset_bytes,
                length_bytes=line.length_bytes,
                tokens=line.prompt_tokens + line.output_tokens,
            )
            for line in chunk.lines
        ),
        "line_hashes": pack_hashes({line.line: line.digest for line in chunk.lines}),
        "attempt": 0,
        "lines_done": 0,
    }
