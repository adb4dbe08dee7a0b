"""The file store on S3: one completed upload in equal parts, or nothing (§8.6, §8.8)."""

from __future__ import annotations

import hashlib
import os

import fsspec
import pytest

from weir_controlplane.errors import StorageError
from weir_controlplane.files.storage import PART_BYTES, Storage


def tag_of(s3_url: str, key: str) -> str:
    file_system, root = fsspec.core.url_to_fs(s3_url)
    tag: str = file_system.info(f"{root}/{key}", refresh=True)["ETag"]
    return tag.strip('"')


def multipart_tag(content: bytes) -> str:
    """S3's tag of an object that came in parts of 16 MiB, the last one shorter."""
    starts = range(0, len(content), PART_BYTES)
    parts = [hashlib.md5(content[n : n + PART_BYTES]).digest() for n in starts]  # noqa: S324
    return f"{hashlib.md5(b''.join(parts)).hexdigest()}-{len(parts)}"  # noqa: S324


async def test_objects_on_s3(s3_url: str) -> None:
    storage = Storage(s3_url)
    await storage.open()
    content = os.urandom(2 * PART_BYTES + 1000)
    async with storage.writer("a/b") as writer:
        for start in range(0, len(content), 700_001):
            await writer.write(content[start : start + 700_001])
        assert not await storage.exists("a/b")
    assert await storage.size_bytes("a/b") == len(content)
    assert tag_of(s3_url, "a/b") == multipart_tag(content)
    assert b"".join([block async for block in storage.stream("a/b")]) == content
    ranges = [(5, 9), (0, 2), (len(content) - 1, len(content) + 50)]
    assert await storage.read_ranges("a/b", ranges) == [content[5:9], content[:2], content[-1:]]
    assert await storage.keys("a") == ["a/b"]

    async def write_and_stop(size_bytes: int) -> None:
        async with storage.writer("half") as half:
            await half.write(content[:size_bytes])
            raise RuntimeError("stop")

    for size_bytes in (10, 2 << 20, len(content)):
        with pytest.raises(RuntimeError, match="stop"):
            await write_and_stop(size_bytes)
        assert not await storage.exists("half")
    with storage.blocking_writer("c") as blocking:
        blocking.append(b"xyz")
    assert storage.blocking_read("c", 1, 3) == b"yz"
    assert not await storage.is_missing("a/b")
    await storage.delete("a/b")
    await storage.delete("a/b")
    assert await storage.is_missing("a/b")
    with pytest.raises(StorageError, match="the file store has no such object"):
        await storage.read("a/b", 0, 1)


async def test_an_upload_that_cannot_be_completed_leaves_no_parts(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.6: nobody else would ever remove them."""
    storage = Storage(s3_url)
    await storage.open()
    file_system, root = fsspec.core.url_to_fs(s3_url)

    def failing(_file: object) -> None:
        raise ConnectionResetError

    async def write() -> None:
        async with storage.writer("large") as writer:
            await writer.write(bytes(PART_BYTES + 1000))

    with monkeypatch.context() as patched:
        patched.setattr("s3fs.core.S3File.commit", failing)
        with pytest.raises(StorageError):
            await write()
    assert not await storage.exists("large")
    assert file_system.list_multipart_uploads(root.partition("/")[0]) == []
    await write()
    assert await storage.size_bytes("large") == PART_BYTES + 1000


async def test_an_s3_without_credentials_is_a_store_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S3's libraries raise errors that are no OSErrors: they count as the store's, too."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage = Storage("s3://weir/nobody")
    with pytest.raises(StorageError, match="weir/nobody cannot be used: Unable to locate cred"):
        await storage.open()
    for ask in (storage.size_bytes, storage.is_missing):
        with pytest.raises(StorageError, match="the file store failed: NoCredentialsError"):
            await ask("a")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
