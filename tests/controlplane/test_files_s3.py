"""The file store on S3: one completed upload, or nothing (design.md §8.8)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import fsspec
import httpx
import pytest

from tests.support.processes import free_port
from weir_controlplane.errors import StorageError
from weir_controlplane.files.storage import PART_BYTES, Storage

START_S = 60


@pytest.fixture
def s3_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server in a process of its own.

    It is made of Flask, whose context objects raise when vLLM looks at every loaded module.
    """
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(f"{address}/weir")
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield "s3://weir/files"
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    finally:
        server.terminate()
        server.wait(10)


def _make_bucket(url: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            httpx.put(url).raise_for_status()
        except httpx.ConnectError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


async def test_objects_on_s3(s3_url: str) -> None:
    storage = Storage(s3_url)
    await storage.open()
    content = os.urandom(PART_BYTES + 1000)
    async with storage.writer("a/b") as writer:
        for start in range(0, len(content), 1 << 20):
            await writer.write(content[start : start + (1 << 20)])
        assert not await storage.exists("a/b")
    assert await storage.size_bytes("a/b") == len(content)
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
    await storage.delete("a/b")
    await storage.delete("a/b")
    with pytest.raises(StorageError, match="does not have this object"):
        await storage.read("a/b", 0, 1)
