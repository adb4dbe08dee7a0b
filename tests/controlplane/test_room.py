"""Who gets a place when many come at once, and whose place is free again (design.md §8.11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from fastapi import FastAPI, Response
from starlette.types import Message

from tests.controlplane.agent_sim import SimAgent
from tests.controlplane.support import eventually, make_settings, running, stored_files
from weir_controlplane.app import make_services
from weir_controlplane.limits import install_limits


class SlowUpload:
    """An upload that begins and then waits to be told to go on."""

    HEADERS: ClassVar = {"Content-Type": "multipart/form-data; boundary=b"}

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._go_on = asyncio.Event()
        self._answer = asyncio.create_task(
            client.post("/v1/files", content=self._body(), headers=self.HEADERS)
        )

    async def _body(self) -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        await self._go_on.wait()
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx'
        yield b"\r\n--b--\r\n"

    async def end(self) -> int:
        self._go_on.set()
        return (await self._answer).status_code


async def test_uploads_above_the_bound_are_told_to_come_back(tmp_path: Path) -> None:
    """§8.11: 503 with Retry-After of at most 60 s."""
    async with running(make_settings(tmp_path, max_concurrent_uploads=1)) as plane:
        key = await plane.tenant_key("acme")
        async with plane.client(key) as one, plane.client(key) as other:
            first = SlowUpload(one)
            await eventually(lambda: plane.services.upload_room.free == 0)
            refused = await other.post("/v1/files", data={}, files={"file": ("a", b"x")})
            assert refused.status_code == 503
            assert 0 < int(refused.headers["Retry-After"]) <= 60
            assert await first.end() == 200


async def test_a_tenant_of_slow_uploads_leaves_places_to_others(tmp_path: Path) -> None:
    """However many it begins, another tenant's upload is taken at once."""
    async with running(make_settings(tmp_path, max_concurrent_uploads=6)) as plane:
        slow, other = [await plane.tenant_key(name) for name in ("slow", "other")]
        async with plane.client(slow) as one, plane.client(other) as two:
            room = plane.services.upload_room
            begun = []
            for free in (5, 4, 3, 2):
                begun.append(SlowUpload(one))
                await eventually(lambda free=free: room.free == free)  # type: ignore[misc]
            refused = await one.post("/v1/files", files={"file": ("a", b"x")})
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
            taken = await two.post("/v1/files", data={"purpose": "batch"}, files={"file": b"x"})
            assert taken.status_code == 200
            assert [await upload.end() for upload in begun] == [200] * 4
            assert room.free == 6


@pytest.mark.parametrize(
    ("path", "content_type"),
    [("/v1/files", "multipart/form-data; boundary=b"), ("/v1/batches", "application/json")],
)
async def test_a_client_that_is_gone_amid_its_body_keeps_no_place(
    tmp_path: Path, path: str, content_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path, max_concurrent_uploads=1, max_in_flight_requests=1)
    async with running(settings) as plane:
        key = await plane.tenant_key("acme")
        url = httpx.URL(plane.url)
        with monkeypatch.context() as patched:
            for bound in ("BODY_IDLE_S", "_DRAIN_S"):
                patched.setattr(f"weir_controlplane.limits.{bound}", 0.2)
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer {key}\r\n"
                f"Content-Type: {content_type}\r\nContent-Length: 1000\r\n\r\n--b\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            body = json.loads(await reader.read())  # to its end: the connection is closed
            writer.close()
        assert head.startswith(b"HTTP/1.1 408 ")
        assert body["error"]["code"] == "request_timeout"
        async with plane.client(key) as client:
            files = {"file": ("a", b"x")}
            again = await client.post("/v1/files", data={"purpose": "batch"}, files=files)
        assert again.status_code == 200, again.text
        assert len(stored_files(plane)) == 1


async def test_a_client_that_reads_nothing_of_its_answer_keeps_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir_controlplane.limits.SEND_IDLE_S", 0.5)
    content = b"x" * (32 << 20)  # more than sockets hold
    async with running(make_settings(tmp_path, max_in_flight_requests=1)) as plane:
        key = await plane.tenant_key("acme")
        async with plane.client(key) as client:
            made = await client.post(
                "/v1/files", data={"purpose": "batch"}, files={"file": ("a", content)}
            )
            path = f"/v1/files/{made.json()['id']}/content"
            async with client.stream("GET", path) as unread:
                assert unread.status_code == 200
                async with plane.client(key) as other:
                    answered = lambda: _is_answered(other, "/v1/files")  # noqa: E731
                    await eventually(answered, within_s=20)
                    assert (await other.get(path)).content == content  # who reads gets it whole


async def test_a_client_that_reads_all_but_the_end_keeps_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir_controlplane.limits.SEND_IDLE_S", 0.1)
    app, sent = FastAPI(), 0
    settings = make_settings(tmp_path)
    install_limits(app, make_services(settings))

    @app.get("/large")
    async def large() -> Response:
        return Response(b"x" * 100_000)

    async def send(message: Message) -> None:
        nonlocal sent
        sent += len(message.get("body", b""))
        if message["type"] == "http.response.body" and not message.get("more_body"):
            await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/large", "query_string": b"", "headers": []}
    async with asyncio.timeout(20):
        await app({**scope, "root_path": ""}, receive, send)
    assert sent == 100_000


async def _is_answered(client: httpx.AsyncClient, path: str) -> bool:
    return (await client.get(path)).status_code == 200


async def test_requests_of_tenants_leave_places_to_agents(tmp_path: Path) -> None:
    async with running(make_settings(tmp_path, max_in_flight_requests=4)) as plane:
        tenants = [await plane.tenant_key(name) for name in ("acme", "other")]
        agent = await plane.key(scope="agent")
        async with (
            plane.client(tenants[0]) as one,
            plane.client(tenants[1]) as two,
            plane.client(agent) as other,
        ):
            begun = [SlowUpload(one) for _ in range(2)]
            await eventually(lambda: plane.services.upload_room.free == 30)
            go_on = asyncio.Event()

            async def slow() -> AsyncIterator[bytes]:
                yield b"{"
                await go_on.wait()
                yield b"}"

            third = asyncio.create_task(two.post("/v1/batches", content=slow()))
            gauge = "weir_controlplane_requests_in_flight"
            await eventually(lambda: plane.services.metrics.get_sample_value(gauge) == 3)
            assert (await one.get("/v1/files")).status_code == 503
            await SimAgent(client=other, agent_id="pod-0").sync()
            go_on.set()
            await third
            assert [await upload.end() for upload in begun] == [200] * 2


async def test_requests_above_the_bound_are_told_to_come_back(tmp_path: Path) -> None:
    """§8.11."""
    settings = make_settings(tmp_path, max_in_flight_requests=1)
    async with running(settings) as plane:
        key = await plane.tenant_key("acme")

        async def slow(go_on: asyncio.Event) -> AsyncIterator[bytes]:
            yield b"{"
            await go_on.wait()
            yield b"}"

        go_on = asyncio.Event()
        async with plane.client(key) as one, plane.client(key) as other:
            first = asyncio.create_task(one.post("/v1/batches", content=slow(go_on)))
            gauge = "weir_controlplane_requests_in_flight"
            await eventually(lambda: plane.services.metrics.get_sample_value(gauge) == 1)
            refused = await other.get("/v1/files")
            assert refused.status_code == 503
            assert refused.json()["error"]["type"] == "overloaded_error"
            assert 0 < int(refused.headers["Retry-After"]) <= 60
            assert (await other.get("/healthz")).status_code == 200  # probes always pass
            go_on.set()
            await first
            assert (await other.get("/v1/files")).status_code == 200
            text = (await other.get("/metrics")).text
            assert 'weir_controlplane_requests_total{method="GET",route="refused"' in text


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_over_the_bound_is_refused(tmp_path: Path, *, chunked: bool) -> None:
    settings = make_settings(tmp_path, max_body_bytes=64 << 10)
    async with running(settings) as plane:
        key = await plane.tenant_key("acme")
        body = json.dumps({"metadata": {"a": "x" * (64 << 10)}}).encode()

        async def stream() -> AsyncIterator[bytes]:
            yield body

        async with plane.client(key) as client:
            answer = await client.post("/v1/batches", content=stream() if chunked else body)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "payload_too_large"
