"""A batch with chunks put straight into a database, for tests below HTTP."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from tests.controlplane.agent_sim import result_line
from weir_controlplane.dispatch.commits import Commit, Committed, commit
from weir_controlplane.dispatch.uploads import ResultUpload, store_result
from weir_controlplane.dispatch.work import Grant, LeaseRef, ReportedDeath, Served, SyncWork
from weir_controlplane.files.storage import Storage
from weir_controlplane.ids import new_id
from weir_controlplane.store.database import Database, clock_s
from weir_controlplane.store.line_index import (
    IndexedLine,
    line_ranges,
    lines_of_ranges,
    pack_lines,
    unpack_lines,
)
from weir_controlplane.store.models import Batch, Chunk, ChunkResult, File, Suspect, Tenant


def record(line: int) -> bytes:
    """The input line with this number."""
    value = {"custom_id": f"line-{line}", "method": "POST", "url": "/v1/x", "body": {"n": line}}
    return json.dumps(value).encode() + b"\n"


async def put_submitted(
    database: Database, *, content: bytes, known: bool = True, others: Sequence[str] = ()
) -> str:
    """The id of a batch that waits for its validation.

    Its input is to be stored under ``files/in``; ``others`` are further files. Not ``known``: an
    earlier release took it, which noted no hashes.
    """
    async with database.transaction() as session:
        session.add(Tenant(id="t", name="t", created_at=1.0))
        await session.flush()
        for name in ("in", *others):
            session.add(
                File(
                    id=name, tenant_id="t", filename=name, purpose="batch",
                    size_bytes=len(content),
                    sha256=hashlib.sha256(content).hexdigest() if known else None,
                    status="processed", storage_key=f"files/{name}", created_at=1.0,
                )
            )  # fmt: skip
        await session.flush()
        session.add(
            Batch(
                id="b", tenant_id="t", input_file_id="in", endpoint="/v1/completions",
                completion_window="24h", output_expires_s=3600, status="validating",
                created_at=1.0, expires_at=2e10, fingerprint="f", matched_retry_counts=[],
            )
        )  # fmt: skip
    return "b"


async def put_batch(
    database: Database, *, lines: int, chunk_lines: int = 4, model: str = "tiny"
) -> str:
    """The id of a batch in progress whose chunks are open; its input file is not stored."""
    offset = 0
    index: list[IndexedLine] = []
    for line in range(1, lines + 1):
        length = len(record(line)) - 1
        index.append(IndexedLine(line=line, offset_bytes=offset, length_bytes=length, tokens=50))
        offset += length + 1
    tenant, file, batch = new_id("tenant_"), new_id("file-"), new_id("batch_")
    async with database.transaction() as session:
        now_s = await clock_s(session)
        session.add(Tenant(id=tenant, name=tenant, created_at=now_s))
        await session.flush()
        session.add(
            File(
                id=file,
                tenant_id=tenant,
                filename="in.jsonl",
                purpose="batch",
                size_bytes=offset,
                status="processed",
                storage_key=f"inputs/{file}",
                created_at=now_s,
            )
        )
        await session.flush()
        session.add(
            Batch(
                id=batch,
                tenant_id=tenant,
                input_file_id=file,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                output_expires_s=86_400,
                model=model,
                status="in_progress",
                created_at=now_s,
                in_progress_at=now_s,
                expires_at=now_s + 86_400,
                total_lines=lines,
                fingerprint="",
            )
        )
        await session.flush()
        for place, start in enumerate(range(0, lines, chunk_lines)):
            part = index[start : start + chunk_lines]
            session.add(
                Chunk(
                    id=new_id("chunk_"),
                    batch_id=batch,
                    position=place,
                    state="open",
                    prefix_group=f"g{place}",
                    density=1.0,
                    tokens=50 * len(part),
                    lines=len(part),
                    size_bytes=sum(item.length_bytes for item in part),
                    line_index=pack_lines(part),
                )
            )
    return batch


async def chunks_of(database: Database, batch_id: str) -> list[Chunk]:
    """Every chunk of a batch, by position."""
    async with database.read() as session:
        statement = select(Chunk).where(Chunk.batch_id == batch_id)
        found = await session.execute(statement.order_by(Chunk.position, Chunk.id))
        return list(found.scalars())


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Where the lines of a batch are."""

    committed: Counter[int]
    pending: Counter[int]  # in chunks that are open, leased or closed without a result
    failed: set[int]


async def lines_of(database: Database, batch_id: str) -> Lines:
    """Where the lines of a batch are now."""
    async with database.read() as session:
        results = await session.execute(
            select(ChunkResult.ranges).where(ChunkResult.batch_id == batch_id)
        )
        committed = Counter(
            line for ranges in results.scalars() for line in lines_of_ranges(ranges)
        )
        indexes = await session.execute(
            select(Chunk.line_index).where(Chunk.batch_id == batch_id, Chunk.state != "done")
        )
        pending = Counter(item.line for index in indexes.scalars() for item in unpack_lines(index))
        failed = await session.execute(
            select(Suspect.line).where(Suspect.batch_id == batch_id, Suspect.state == "failed")
        )
        return Lines(committed=committed, pending=pending, failed=set(failed.scalars()))


async def assert_nothing_lost_or_doubled(database: Database, batch_id: str, total: int) -> Lines:
    """Each line is in one place: committed, pending, or failed with its own error."""
    found = await lines_of(database, batch_id)
    doubled = {line for line, times in (found.committed + found.pending).items() if times > 1}
    assert not doubled, f"twice: {sorted(doubled)}"
    assert not found.failed & set(found.committed), "failed and committed"
    everywhere = set(found.committed) | set(found.pending) | found.failed
    assert everywhere == set(range(1, total + 1))
    return found


@dataclass
class Process:
    """One process of an agent, below HTTP."""

    agent_id: str
    boot: int = 1
    incarnation: int | None = None
    sequence: int = 0

    def work(
        self,
        *,
        held: Sequence[Grant] = (),
        returned: Sequence[Grant] = (),
        deaths: Sequence[ReportedDeath] = (),
        wanted: Sequence[str] = (),
        most_lines: int | None = None,
        state: str = "serving",
    ) -> SyncWork:
        """The next sync."""
        self.sequence += 1
        return SyncWork(
            agent_id=self.agent_id,
            boot_id=f"{self.agent_id}-{self.boot}",
            incarnation=self.incarnation,
            sequence=self.sequence,
            service="svc",
            models=(Served(name="tiny", revision=""),),
            state=state,  # type: ignore[arg-type]
            held=tuple(ref(item) for item in held),
            returned=tuple(ref(item) for item in returned),
            deaths=tuple(deaths),
            wanted=tuple(wanted),
            most_lines=most_lines,
        )

    def restart(self) -> None:
        """The next process of the same agent."""
        self.boot += 1
        self.incarnation = None
        self.sequence = 0


def ref(grant: Grant) -> LeaseRef:
    """A lease as its holder names it."""
    return LeaseRef(chunk_id=grant.chunk_id, attempt=grant.attempt, nonce=grant.nonce)


async def upload(database: Database, storage: Storage, grant: Grant, lines: Collection[int]) -> str:
    """Stores results of these lines under a lease; the upload's id."""
    body = b"".join(
        json.dumps(result_line(line, f"line-{line}")).encode() + b"\n" for line in sorted(lines)
    )

    async def blocks() -> AsyncIterator[bytes]:
        yield body

    wish = ResultUpload(
        chunk_id=grant.chunk_id,
        attempt=grant.attempt,
        nonce=grant.nonce,
        sha256=hashlib.sha256(body).hexdigest(),
        lines=len(lines),
    )
    return await store_result(database, storage, wish, blocks())


async def commit_lines(
    database: Database, grant: Grant, upload_id: str, lines: Collection[int], *, final: bool
) -> Committed:
    """Commits uploaded lines."""
    ranges = tuple((first, last) for first, last in line_ranges(sorted(lines)))
    return await commit(
        database,
        Commit(
            chunk_id=grant.chunk_id,
            attempt=grant.attempt,
            nonce=grant.nonce,
            upload_id=upload_id,
            ranges=ranges,
            final=final,
        ),
    )
