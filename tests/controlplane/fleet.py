"""A fleet for tests: commits chunk results as agents would, without HTTP between."""

from __future__ import annotations

import json
from collections.abc import Collection

import openai
from openai.types import Batch as ClientBatch
from sqlalchemy import select

from tests.controlplane.support import batch_reaches
from weir_controlplane.ids import new_id, new_nonce
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.line_index import line_ranges, unpack_lines
from weir_controlplane.store.models import Batch, Chunk, ChunkResult, File, Upload

USAGE = {"input_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "reasoning_tokens": 1}


class Fleet:
    """Answers every line with its custom_id; lines in ``fails`` get HTTP status 400."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def until(self, client: openai.AsyncOpenAI, batch_id: str, status: str) -> ClientBatch:
        """The batch once it has this status; fails when it ends otherwise."""
        return await batch_reaches(client, batch_id, status)

    async def chunks(self, batch_id: str) -> list[Chunk]:
        """The chunks of a batch in prefix order."""
        async with self.services.database.read() as session:
            statement = select(Chunk).where(Chunk.batch_id == batch_id).order_by(Chunk.position)
            return list((await session.execute(statement)).scalars())

    async def finish(
        self, batch_id: str, *, fails: Collection[int] = (), chunks: int | None = None
    ) -> int:
        """Commits the first ``chunks`` open chunks (all of them); how many lines they had."""
        opened = [chunk for chunk in await self.chunks(batch_id) if chunk.state == "open"]
        for chunk in opened[:chunks]:
            await self.commit(chunk, fails=fails)
        return sum(chunk.lines for chunk in opened[:chunks])

    async def commit(self, chunk: Chunk, *, fails: Collection[int] = ()) -> None:
        """Commits every line of one chunk."""
        async with self.services.database.read() as session:
            batch = await session.get_one(Batch, chunk.batch_id)
            file = await session.get_one(File, batch.input_file_id)
        lines = unpack_lines(chunk.line_index)
        raw = await self.services.storage.read_ranges(
            file.storage_key,
            [(item.offset_bytes, item.offset_bytes + item.length_bytes) for item in lines],
        )
        results = []
        for item, content in zip(lines, raw, strict=True):
            failed = item.line in fails
            body = {"error": {"message": "no"}} if failed else {}
            results.append(
                {
                    "line": item.line,
                    "request_id": f"r{item.line}",
                    "response": {
                        "status_code": 400 if failed else 200,
                        "request_id": f"r{item.line}",
                        "body": body or {"echo": json.loads(content)["custom_id"]},
                    },
                    "error": None,
                    "usage": None if failed else USAGE,
                }
            )
        await self.store(chunk, results)

    async def store(self, chunk: Chunk, results: list[dict[str, object]]) -> None:
        """Commits these results as the whole of a chunk."""
        content = b"".join(json.dumps(result).encode() + b"\n" for result in results)
        nonce = new_nonce()
        key = f"results/{chunk.batch_id}/{chunk.id}-{nonce}"
        async with self.services.storage.writer(key) as writer:
            await writer.write(content)
        done = sum(1 for result in results if result["usage"])
        common = {
            "chunk_id": chunk.id,
            "batch_id": chunk.batch_id,
            "attempt": 1,
            "nonce": nonce,
            "storage_key": key,
            "size_bytes": len(content),
            "ranges": line_ranges(int(str(result["line"])) for result in results),
            "completed_lines": done,
            "failed_lines": len(results) - done,
            **{name: tokens * done for name, tokens in USAGE.items()},
        }
        async with self.services.database.transaction() as session:
            upload = Upload(
                id=new_id("upload_"),
                sha256=writer.sha256,
                created_at=await clock_s(session),
                stored=True,
                committed=True,
                **common,
            )
            session.add(upload)
            await session.flush()
            session.add(ChunkResult(upload_id=upload.id, committed_at=db_now(), **common))
            (await session.get_one(Chunk, chunk.id)).state = "done"
        await self.services.nudge.send("batches")
