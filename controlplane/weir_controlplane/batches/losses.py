"""What of a batch is lost, altered or contradicts the rest: which, and when to believe it.

A store that fails or does not answer has said nothing, and one that has none of the other files
either is not the store that it was: a folder that is not mounted, a bucket of another name.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import select

from weir_controlplane.batches.leases import Work, hold
from weir_controlplane.batches.output import UnwantedError
from weir_controlplane.batches.states import Status
from weir_controlplane.batches.validation import ContentError
from weir_controlplane.errors import MissingObjectError
from weir_controlplane.files.storage import Storage
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.line_index import lines_of_ranges
from weir_controlplane.store.models import Batch, ChunkResult, File, Suspect, Upload

BELIEVED_TIMES = 5  # in a row, the last one included
BELIEVED_AFTER_S = 1800.0  # from the first time to the last
_WITNESSES = 20

LOST_LINE = {
    "code": "results_lost",
    "message": "The result of this request is lost, altered or doubtful; send it again in a new "
    "batch.",
}


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What the store lacks or has altered, or the database has lost.

    ``results``: storage keys of committed results that cannot be used. ``lines``: those that are
    finished, and have no result at all.
    """

    input_file_id: str | None = None
    results: frozenset[str] = frozenset()
    lines: frozenset[int] = frozenset()


def error_of(losses: Losses) -> ContentError:
    """As the batch's owner is told."""
    if losses.input_file_id is not None:
        return ContentError(
            code="input_file_lost",
            message="the file store has lost or altered the content of "
            f"{losses.input_file_id}, the input file; upload it again and create a new batch",
            param="input_file_id",
        )
    return ContentError(
        code="results_lost",
        message=f"{len(losses.results)} result objects of this batch, and the results of "
        f"{len(losses.lines)} further lines, are lost, altered or contradict each other; "
        "the error file names their lines with this code: send those again in a new batch",
    )


async def check_input(services: Services, work: Work, wanted: Callable[[], bool]) -> None:
    """Ends the doubt about a running batch whose input is there after all.

    Raises:
        MissingObjectError: the store still says that it is not.
        StorageError: the store says nothing.
        LeaseLostError: another replica does this now, or the batch runs no more.
        UnwantedError: ``wanted`` said no.
    """
    if (await find_losses(services, work, wanted)).input_file_id is not None:
        raise MissingObjectError("the file store does not have the input file as it was stored")
    async with services.database.transaction() as session:
        batch = await hold(session, work)
        batch.work_failures, batch.work_error = 0, None
        batch.missing_since, batch.missing_times = None, 0
        batch.work_nonce, batch.work_lease_until = None, 0.0


async def find_losses(services: Services, work: Work, wanted: Callable[[], bool]) -> Losses:
    """Looks at every object that the batch needs now, and whole: at results only at its end.

    Raises:
        StorageError: the store does not answer for all of them.
        UnwantedError: ``wanted`` said no.
    """
    storage = services.storage
    async with services.database.read() as session:
        batch = await session.get_one(Batch, work.batch_id)
        file = await session.get_one(File, batch.input_file_id)
        statement = (
            select(Upload.storage_key, Upload.sha256, ChunkResult.ranges)
            .join(ChunkResult, ChunkResult.upload_id == Upload.id)
            .where(ChunkResult.batch_id == batch.id)
        )
        results = (await session.execute(statement)).all()
        poisoned = await session.execute(
            select(Suspect.line).where(Suspect.batch_id == batch.id, Suspect.state == "failed")
        )
        failed = frozenset(poisoned.scalars())
    if await storage.is_missing(file.storage_key) or not await _is_whole(storage, file, wanted):
        return Losses(input_file_id=file.id)
    if work.state.status is Status.VALIDATING or (
        work.state.closing_as is None and work.state.status is Status.IN_PROGRESS
    ):
        return Losses()
    lost = {
        key
        for key, sha256, _ in results
        if await storage.is_missing(key) or await hash_of_object(storage, key, wanted) != sha256
    }
    lines = {key: frozenset(lines_of_ranges(ranges)) for key, _, ranges in results}
    lost |= _contradictory(lines, batch.total_lines)
    completed = (work.state.closing_as or Status.COMPLETED) is Status.COMPLETED
    due = frozenset(range(1, batch.total_lines + 1)) if completed else frozenset()
    return Losses(results=frozenset(lost), lines=due.difference(failed, *lines.values()))


async def _is_whole(storage: Storage, file: File, wanted: Callable[[], bool]) -> bool:
    if file.sha256 is None:
        return await storage.size_bytes(file.storage_key) == file.size_bytes
    return await hash_of_object(storage, file.storage_key, wanted) == file.sha256


async def hash_of_object(storage: Storage, key: str, wanted: Callable[[], bool]) -> str:
    """The SHA-256 of an object, in hex.

    Raises:
        UnwantedError: ``wanted`` said no; asked after every block.
    """
    digest = hashlib.sha256()
    async for block in storage.stream(key):
        digest.update(block)
        if not wanted():
            raise UnwantedError
    return digest.hexdigest()


def _contradictory(results: Mapping[str, frozenset[int]], total_lines: int) -> set[str]:
    """Those with lines that another has too, or that the input has not."""
    answers = Counter(line for lines in results.values() for line in lines)
    return {
        key
        for key, lines in results.items()
        if any(answers[line] > 1 or line > total_lines for line in lines)
    }


async def is_believed(services: Services, work: Work) -> bool:
    """Whether that has now been so often and long enough, and the store has other files.

    Raises:
        LeaseLostError: another replica does this now.
        StorageError: the store does not answer for the other files.
    """
    async with services.database.transaction() as session:
        batch = await hold(session, work)
        times, since = batch.missing_times + 1, batch.missing_since
        now_s = await clock_s(session)
        if times < BELIEVED_TIMES or since is None or now_s - since < BELIEVED_AFTER_S:
            return False
        statement = (
            select(File.storage_key)
            .where(File.status == "processed", File.id != batch.input_file_id)
            .order_by(File.created_at.desc())
            .limit(_WITNESSES)
        )
        witnesses = list((await session.execute(statement)).scalars())
    for key in witnesses:
        if not await services.storage.is_missing(key):
            return True
    return not witnesses
