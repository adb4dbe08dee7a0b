"""What a caller without a key may send before its request is one (§8, Security)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from tests.controlplane.support import make_settings, running

HEAD = b"GET /healthz HTTP/1.1\r\nHost: weir\r\n"
TOO_LARGE = b"request line and headers have more than 65536 bytes"
TOO_LATE = b"request line and headers did not come within 0.3 s"


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[tuple[str, int]]:
    async with running(make_settings(tmp_path)) as plane:
        url = httpx.URL(plane.url)
        yield url.host, url.port or 0


async def answered(address: tuple[str, int], begin: bytes, more: bytes = b"") -> bytes:
    """All that comes until the server hangs up on a client that goes on and on with ``more``."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(begin)

    async def go_on() -> None:
        await asyncio.sleep(0.1)  # what was begun may have been answered
        with contextlib.suppress(ConnectionError):
            for _ in range(400 if more else 0):
                writer.write(more)
                await writer.drain()

    sending = asyncio.create_task(go_on())
    found = b""
    try:
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                while piece := await reader.read(65_536):
                    found += piece
    finally:
        sending.cancel()
        writer.close()
    return found


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (HEAD, b"".join(b"X-%d: y\r\n" % number for number in range(1_000))),
        (HEAD + b"X: ", b"y" * 10_000),
        (b"GET /", b"y" * 10_000),
        (HEAD + b"\r\n" + HEAD + b"X: ", b"y" * 10_000),  # in line behind another
    ],
    ids=["headers", "header", "url", "second"],
)
async def test_a_head_without_end_is_refused(
    address: tuple[str, int], begin: bytes, more: bytes
) -> None:
    """It cost memory without bound, and seconds of the loop: what came is read with each piece."""
    found = await answered(address, begin, more)
    assert found.count(b"HTTP/1.1 ") == (2 if b"\r\n\r\n" in begin else 1)
    assert found.endswith(TOO_LARGE)


@pytest.mark.parametrize(
    ("begin", "more", "said"),
    [
        (b"", b"", b""),  # a client that kept a connection ready takes words for an answer
        (b"GET /hea", b"", TOO_LATE),
        (HEAD, b"", TOO_LATE),
        (HEAD + b"\r\n" + HEAD, b"", TOO_LATE),
        (HEAD + b"\r\n", b"\r\n", TOO_LATE),
    ],
    ids=["nothing", "line", "headers", "second", "blank"],
)
async def test_a_head_that_does_not_come_is_not_waited_for(
    address: tuple[str, int],
    begin: bytes,
    more: bytes,
    said: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection would be kept for ever, and there are only so many."""
    monkeypatch.setattr("weir_controlplane.heads.HEAD_WITHIN_S", 0.3)
    found = await answered(address, begin, more)
    assert found.endswith(said) if said else not found


async def test_what_comes_behind_a_head_has_its_own_bounds(address: tuple[str, int]) -> None:
    """Bodies, many requests on one connection, and the largest head that clients send."""
    host, port = address
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        for _ in range(3):
            answer = await client.post("/nowhere", content=b"x" * 300_000)
            assert answer.status_code == 404
            answer = await client.get("/healthz", headers={"X": "y" * 60_000})
            assert answer.status_code == 200


async def test_an_upload_without_a_key_is_told_so_and_cuts_off_no_client(
    address: tuple[str, int],
) -> None:
    """A body that nobody wants is no head that is too long: clients would see no 401."""

    def statuses() -> list[int]:
        with contextlib.closing(HTTPConnection(*address, timeout=20)) as client:
            found = []
            for _ in range(2):
                client.request("POST", "/v1/files", body=b"x" * 16_000_000)
                answer = client.getresponse()
                answer.read()
                found.append(answer.status)
            return found

    assert await asyncio.to_thread(statuses) == [401, 401]
