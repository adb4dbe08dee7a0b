"""The end of a batch: its output and error files, then its terminal state in one transaction.

The same for completed, cancelled and expired batches (§8.6): what is committed is kept, once, and
every other line gets an error line. So it is where committed results are lost; without its input a
batch has no files, for ``custom_id`` is there alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.leases import Work, hold, set_state, state_of
from weir_controlplane.batches.line_reader import LineSource, LineTooLongError, RawLine, read_lines
from weir_controlplane.batches.losses import LOST_LINE, Losses, error_of
from weir_controlplane.batches.output import Sources, Totals, write_outputs
from weir_controlplane.batches.result_reader import ResultSource, merged_results
from weir_controlplane.batches.states import Event, Status, advance
from weir_controlplane.dispatch.restructure import close_chunks
from weir_controlplane.errors import MissingObjectError, StorageError
from weir_controlplane.files.service import forget_unfinished
from weir_controlplane.files.storage import Storage
from weir_controlplane.ids import new_id
from weir_controlplane.services import Services
from weir_controlplane.settings import MAX_LINE_BYTES
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.line_index import lines_of_ranges
from weir_controlplane.store.models import Batch, Chunk, ChunkResult, File, Suspect, Upload

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What there is to write, read from the database in one transaction."""

    batch: Batch
    closing_as: Status
    input_file: File
    results: list[ResultSource]
    suspects: dict[int, dict[str, str]]
    files: dict[str, File]  # output and error: rows that say "uploading" until the end


async def wind_up(
    services: Services, work: Work, wanted: Callable[[], bool], losses: Losses | None = None
) -> None:
    """Ends a batch. Safe to repeat from any point at which it was interrupted.

    With ``losses`` it fails, and its files hold what can still be given.

    Raises:
        LeaseLostError: another replica does this now.
        BrokenResultError: committed results contradict the input.
        UnwantedError: ``wanted`` said no.
        MissingObjectError: the store lacks the input or has altered it, or lacks a result that
            ``losses`` does not name.
    """
    if not work.validated or (losses and losses.input_file_id):  # there is nothing to write
        await _end(services, work, None, Totals(), losses)
        return
    plan = await _prepare(services, work, losses or Losses())
    files = list(plan.files.values())
    try:
        totals = await asyncio.to_thread(_write, services, plan, wanted)
    except Exception:  # not where it is cancelled: the thread may be writing yet
        await forget_unfinished(services, files)
        raise
    try:
        await _end(services, work, plan, totals, losses)
    except BaseException:
        # It may have been committed although its answer was lost: the rows know.
        await asyncio.shield(forget_unfinished(services, files))
        raise


async def _prepare(services: Services, work: Work, losses: Losses) -> _Plan:
    async with services.database.transaction() as session:
        batch = await hold(session, work)
        # From here on the results stand still: closed chunks take no commit.
        await close_chunks(session, Chunk.batch_id == batch.id)
        found = await session.execute(
            select(Upload.storage_key, Upload.size_bytes, Upload.sha256, ChunkResult.ranges)
            .join(Upload, Upload.id == ChunkResult.upload_id)
            .where(ChunkResult.batch_id == batch.id)
        )
        committed = found.all()
        results = [
            ResultSource(
                storage_key=row.storage_key,
                size_bytes=row.size_bytes,
                sha256=row.sha256,
                ranges=row.ranges,
            )
            for row in committed
            if row.ranges and row.storage_key not in losses.results
        ]
        poisoned = await session.execute(
            select(Suspect.line, Suspect.error).where(
                Suspect.batch_id == batch.id, Suspect.state == "failed"
            )
        )
        suspects = {line: error or _UNNAMED for line, error in poisoned}
        lost = set(losses.lines)
        for row in committed:
            if row.storage_key in losses.results:
                lost.update(lines_of_ranges(row.ranges))
        suspects |= dict.fromkeys(lost, LOST_LINE)
        input_file = await session.get_one(File, batch.input_file_id)
        files = {kind: await _new_file(session, batch, work, kind) for kind in ("output", "error")}
    return _Plan(
        batch=batch,
        closing_as=work.state.closing_as or Status.COMPLETED,
        input_file=input_file,
        results=results,
        suspects=suspects,
        files=files,
    )


_UNNAMED = {"code": "engine_error", "message": "The engine failed on this request."}


async def _new_file(session: AsyncSession, batch: Batch, work: Work, kind: str) -> File:
    file_id = new_id("file-")
    file = File(
        id=file_id,
        tenant_id=batch.tenant_id,
        filename=f"{batch.id}_{kind}.jsonl",
        purpose="batch_output",
        size_bytes=0,
        status="uploading",
        storage_key=f"outputs/{batch.id}/{work.nonce}-{kind}",
        created_at=await clock_s(session),
    )
    session.add(file)
    return file


def _write(services: Services, plan: _Plan, wanted: Callable[[], bool]) -> Totals:
    sources = Sources(
        batch_id=plan.batch.id,
        closing_as=plan.closing_as,
        total_lines=plan.batch.total_lines,
        input_lines=_input_lines(services.storage, plan.input_file),
        results=merged_results(services.storage, plan.results),
        suspects=plan.suspects,
    )
    return write_outputs(
        services.storage,
        sources,
        output_key=plan.files["output"].storage_key,
        error_key=plan.files["error"].storage_key,
        wanted=wanted,
    )


def _input_lines(storage: Storage, file: File) -> Iterator[RawLine]:
    """What was checked when the batch began, by bounds that may have been lowered since.

    Raises:
        MissingObjectError: the object is another than was stored.
    """
    source = LineSource(
        storage_key=file.storage_key, size_bytes=file.size_bytes, sha256=file.sha256
    )
    try:
        yield from read_lines(storage, source, bound_bytes=MAX_LINE_BYTES)
    except LineTooLongError as error:
        raise MissingObjectError(f"the input file was altered: {error}") from error


async def _end(
    services: Services, work: Work, plan: _Plan | None, totals: Totals, losses: Losses | None
) -> None:
    """Terminal state, timestamps, file ids, counts, usage and quota in one transaction.

    Raises:
        StorageError: the sweeper took the files for abandoned: they are to be written again.
    """
    async with services.database.transaction() as session:
        batch = await hold(session, work)
        now_s = await clock_s(session)
        event = Event.WOUND_UP if losses is None else Event.LOST
        set_state(batch, advance(state_of(batch), event), now_s)
        batch.completed_lines = totals.completed_lines
        batch.failed_lines = totals.failed_lines
        if losses is not None:
            # Those who hold them are told to stop.
            await close_chunks(session, Chunk.batch_id == batch.id)
            batch.failed_lines = batch.total_lines - totals.completed_lines
            batch.errors = [error_of(losses).view()]
        batch.queued_tokens = 0
        batch.work_nonce, batch.work_lease_until = None, 0.0
        if plan is not None:
            batch.input_tokens = totals.usage["input_tokens"]
            batch.cached_tokens = totals.usage["cached_tokens"]
            batch.output_tokens = totals.usage["output_tokens"]
            batch.reasoning_tokens = totals.usage["reasoning_tokens"]
            expires_at = now_s + batch.output_expires_s
            sizes = {"output": totals.output_bytes, "error": totals.error_bytes}
            for kind, file in plan.files.items():
                row = await session.get(File, file.id, with_for_update={"key_share": True})
                if row is None or row.status != "uploading":  # the sweeper took it for abandoned
                    raise StorageError("the files took longer to write than abandoned_upload_s")
                if sizes[kind] == 0:  # empty files are not made
                    await session.delete(row)
                    continue
                row.status, row.size_bytes = "processed", sizes[kind]
                row.created_at, row.expires_at = now_s, expires_at
                setattr(batch, f"{kind}_file_id", row.id)
        status = batch.status
    _log.info("batch_ended", batch_id=work.batch_id, status=status)
