"""Objects appear whole or not at all (design.md §8.8)."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tests.controlplane.support import hanging
from weir_controlplane.errors import StorageError, StorageFullError
from weir_controlplane.files.storage import Storage
from weir_controlplane.files.storage_writer import BLOCK_BYTES


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path / 'files'}")


def objects(tmp_path: Path) -> list[str]:
    return sorted(
        str(path.relative_to(tmp_path / "files"))
        for path in (tmp_path / "files").rglob("*")
        if path.is_file()
    )


async def test_what_is_written_is_read_back(storage: Storage, tmp_path: Path) -> None:
    content = os.urandom(3 * BLOCK_BYTES + 17)
    async with storage.writer("a/b") as writer:
        for start in range(0, len(content), 60_000):
            await writer.write(content[start : start + 60_000])
    assert objects(tmp_path) == ["a/b"]
    assert await storage.size_bytes("a/b") == len(content) == writer.bytes
    assert b"".join([block async for block in storage.stream("a/b")]) == content
    assert await storage.read_ranges("a/b", [(5, 9), (0, 2), (len(content) - 1, 1 << 40)]) == [
        content[5:9],
        content[:2],
        content[-1:],
    ]
    assert await storage.keys("a") == ["a/b"]


async def test_nothing_is_seen_before_the_end(storage: Storage) -> None:
    async with storage.writer("k") as writer:
        await writer.write(b"x" * (2 * BLOCK_BYTES))
        assert not await storage.exists("k")
    assert await storage.exists("k")


async def test_a_writer_that_raises_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    async def write() -> None:
        async with storage.writer("k") as writer:
            await writer.write(b"x" * (2 * BLOCK_BYTES))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await write()

    def write_blocking() -> None:
        with storage.blocking_writer("k") as writer:
            writer.append(b"x" * (2 * BLOCK_BYTES))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_blocking()
    assert objects(tmp_path) == []


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_failing_disk_leaves_no_half_file(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(number, "no")

    async def write() -> None:
        async with storage.writer("k") as writer:
            await writer.write(b"x")

    full = number != errno.EIO
    with monkeypatch.context() as patched:
        patched.setattr(os, where, fail)
        with pytest.raises(StorageFullError if full else StorageError) as caught:
            await write()
    assert caught.value.status == (507 if full else 503)
    assert objects(tmp_path) == []
    await write()
    assert objects(tmp_path) == ["k"]


async def test_a_missing_object_is_an_error_and_deletion_is_safe_to_repeat(
    storage: Storage,
) -> None:
    with pytest.raises(StorageError, match="the file store has no such object"):
        await storage.read("gone", 0, 1)
    assert await storage.is_missing("gone")
    await storage.delete("gone")


async def test_folders_go_with_their_last_object(storage: Storage, tmp_path: Path) -> None:
    """Each chunk's results have one of their own: they would fill the disk."""
    for key in ("results/b/c/1", "results/b/d/1", "results/b/d/2"):
        async with storage.writer(key) as writer:
            await writer.write(b"x")
    await storage.delete("results/b/c/1")
    await storage.delete("results/b/d/1")
    assert folders(tmp_path) == ["results", "results/b", "results/b/d"]
    await storage.delete("results/b/d/2")
    await storage.delete("results/b/d/2")
    assert folders(tmp_path) == []
    assert (tmp_path / "files").is_dir()


async def test_a_folder_that_goes_amid_a_write_is_made_again(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one's object was the last in it."""
    make, left = os.makedirs, 2

    def made_in_vain(path: str, **given: bool) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            make(path, **given)

    monkeypatch.setattr(os, "makedirs", made_in_vain)
    async with storage.writer("a/b") as writer:
        await writer.write(b"x")
    assert objects(tmp_path) == ["a/b"]


def folders(tmp_path: Path) -> list[str]:
    root = tmp_path / "files"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir())


async def test_deleting_removes_what_a_killed_writer_had_begun(
    storage: Storage, tmp_path: Path
) -> None:
    async with storage.writer("a/k1") as writer:
        await writer.write(b"x")
        (temporary,) = objects(tmp_path)
        killed = temporary.replace("k1", "k")
        (tmp_path / "files" / killed).write_bytes(b"half")
        await storage.delete("a/k")
        assert objects(tmp_path) == [temporary]
    assert objects(tmp_path) == ["a/k1"]


async def test_start_fails_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        await Storage(f"file://{tmp_path / 'file'}").open()


async def test_a_full_store_does_not_keep_the_control_plane_from_starting(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else could delete a file in it, and nothing in it would expire."""
    async with storage.writer("a/b") as writer:
        await writer.write(b"x")
    with monkeypatch.context() as full:
        full.setattr(storage, "_create", lambda _key: open("/dev/full", "wb", 0))  # noqa: PTH123, SIM115
        await storage.open()
        assert await storage.read("a/b", 0, 1) == b"x"
        await storage.delete("a/b")
    assert objects(tmp_path) == []


def test_an_unknown_kind_of_store_is_named() -> None:
    with pytest.raises(ValueError, match=r"files_url: .*gopher"):
        Storage("gopher://x")


async def test_a_store_that_hangs_leaves_threads_to_others(
    storage: Storage, tmp_path: Path
) -> None:
    """Who connects to the database, or to an API server, has a name resolved in a thread."""
    async with storage.writer("k") as writer:
        await writer.write(b"x")
    with hanging(tmp_path / "files" / "k"):
        reads = [asyncio.create_task(storage.read("k", 0, 1)) for _ in range(64)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20):
            assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    await asyncio.gather(*reads, return_exceptions=True)
