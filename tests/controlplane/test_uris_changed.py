"""Objects that change while BatchJobs read or deliver them: one whole version, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.support import eventually
from tests.controlplane.test_batchjobs_api import answered, operator
from tests.controlplane.test_uris import give
from weir_controlplane.errors import StorageError
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import File
from weir_controlplane.uris import transfer
from weir_controlplane.uris.rules import parse_uri
from weir_controlplane.uris.transfer import UriAccess


async def test_an_output_that_the_store_has_less_of_is_not_delivered(tmp_path: Path) -> None:
    """It was said to be done, and took the place of a whole one."""
    share = tmp_path / "share"
    share.mkdir()
    (share / "out").write_text("no folder")  # so that it is not delivered yet
    async with operator(tmp_path / "plane") as op:
        await give(op, f"file://{share}")
        batch = await answered(op, lines=4, output_uri=f"file://{share}/out")
        plane = op.lab.plane.services
        async with plane.database.read() as session:
            file = await session.get_one(File, batch.output_file_id)
        root = plane.settings.files.removeprefix("file://")
        with (Path(root) / file.storage_key).open("r+b") as stored:
            stored.truncate(file.size_bytes - 10)

        async def failures() -> int:
            async with plane.database.read() as session:
                return (await session.get_one(BatchJob, "uid-1")).work_failures

        before = await failures()
        (share / "out").unlink()

        async def tried() -> bool:
            state = (await op.get())["delivery"]["state"]
            return state == "done" or await failures() > before + 1  # one may have begun before

        await eventually(tried, within_s=60)
        assert (await op.get())["delivery"]["state"] == "pending"
        assert not (share / "out" / "output.jsonl").exists()


async def test_an_object_that_is_replaced_while_it_is_read_is_read_again(s3_url: str) -> None:
    """Each block was of the object that was there then: a mixture of two that never existed."""
    bucket, uri = Storage(s3_url), parse_uri(f"{s3_url}/in.jsonl")

    async def put(content: bytes) -> None:
        async with bucket.writer("in.jsonl") as writer:
            await writer.write(content)

    async def read(*, replaced: bytes = b"") -> bytes:
        content = b""
        async for block in UriAccess().read(uri, uri.folder):
            content += block
            if replaced:
                await put(replaced)
        return content

    old, new = b"a" * (2 * transfer.BLOCK_BYTES), b"b" * (2 * transfer.BLOCK_BYTES)
    await put(old)
    with pytest.raises(StorageError, match="replaced while it was read"):
        await read(replaced=new)
    assert await read() == new
