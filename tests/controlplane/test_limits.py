"""Places for requests at once: who gets them (§8.11)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.controlplane.agent_sim import SimAgent, result_line
from tests.controlplane.jobs import Lab, lab
from tests.controlplane.support import eventually, hanging, make_settings, running

IN_FLIGHT, ANSWERED = "weir_controlplane_requests_in_flight", "weir_controlplane_requests_total"
REFUSED = {"method": "POST", "route": "refused", "status": "503"}


@pytest.mark.parametrize("keyless", [False, True], ids=["of-a-tenant", "of-nobody"])
async def test_requests_that_never_end_leave_places_to_other_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keyless: bool
) -> None:
    """However many of them come, who knocks next is answered."""
    monkeypatch.setattr("weir_controlplane.limits._DRAIN_S", 0.1)
    async with running(make_settings(tmp_path, max_in_flight_requests=8)) as plane:
        slow = None if keyless else await plane.tenant_key("slow")
        other = await plane.tenant_key("other")
        samples = plane.services.metrics
        go_on = asyncio.Event()

        async def trickle() -> AsyncIterator[bytes]:
            yield b"{"
            await go_on.wait()
            yield b"}"

        def shared_out() -> bool:  # of six places that tenants have, one tenant gets four
            refused = samples.get_sample_value(ANSWERED, REFUSED)
            return (samples.get_sample_value(IN_FLIGHT), refused) == (4, 2)

        async with plane.client(slow) as one, plane.client(other) as two:
            requests = [
                asyncio.create_task(one.post("/v1/batches", content=trickle())) for _ in range(6)
            ]
            await eventually(shared_out)
            answer = await two.get("/v1/files")
            assert answer.status_code == 200, answer.text
            go_on.set()
            await asyncio.gather(*requests, return_exceptions=True)
            assert (await one.get("/v1/files")).status_code == (401 if keyless else 200)


@pytest.mark.parametrize("keyless", [False, True], ids=["of-a-tenant", "of-nobody"])
async def test_bodies_of_strangers_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keyless: bool
) -> None:
    """What only agents, the operator and administrators may call keeps no place for others."""
    monkeypatch.setattr("weir_controlplane.limits._DRAIN_S", 0.1)
    async with running(make_settings(tmp_path, max_in_flight_requests=4)) as plane:
        key = None if keyless else await plane.tenant_key("acme")
        agent = await plane.key(scope="agent")
        status = "401" if keyless else "403"
        refused = {"method": "PUT", "route": "refused", "status": status}
        samples = plane.services.metrics
        go_on = asyncio.Event()

        async def trickle() -> AsyncIterator[bytes]:
            yield b"{"
            await go_on.wait()
            yield b"}"

        async with plane.client(key) as one, plane.client(agent) as other:
            requests = [
                asyncio.create_task(one.put(f"/internal/v1/services/a/s{n}", content=trickle()))
                for n in range(4)
            ]
            await eventually(lambda: samples.get_sample_value(ANSWERED, refused) == 4)
            await SimAgent(client=other, agent_id="pod-0").sync()
            go_on.set()
            await asyncio.gather(*requests, return_exceptions=True)


async def with_a_lease(desk: Lab) -> SimAgent:
    await desk.submit(8)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    return agent


async def test_a_file_store_that_hangs_leaves_places_to_syncs(tmp_path: Path) -> None:
    """Agents give up a transfer and send it again; what waits for the store keeps its place."""
    settings = make_settings(tmp_path, max_in_flight_requests=16)
    async with running(settings) as plane, lab(plane) as desk:
        agent, samples = await with_a_lease(desk), plane.services.metrics
        (lease,) = agent.held.values()
        path = f"/internal/v1/chunks/{lease['chunk_id']}/lines"
        fence = {"attempt": lease["attempt"], "nonce": lease["nonce"]}
        refused = {"method": "GET", "route": "refused", "status": "503"}
        (stored,) = [item for item in (tmp_path / "files" / "files").iterdir() if item.is_file()]
        with hanging(stored):
            begun = [asyncio.create_task(desk.http.get(path, params=fence)) for _ in range(20)]
            # An eighth of the places is for transfers.
            await eventually(lambda: samples.get_sample_value(ANSWERED, refused) == 18, within_s=30)
            for request in begun:
                request.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
            await agent.sync()
            assert agent.last["lost"] == []
            answer = await agent.put_results(lease, b"{}")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        await eventually(lambda: samples.get_sample_value(IN_FLIGHT) == 0)
        assert await agent.finish(lease) == "accepted"


@pytest.mark.parametrize("what", ["results", "sync"])
async def test_an_agent_that_hangs_up_amid_a_body_is_no_defect(tmp_path: Path, what: str) -> None:
    async with running(make_settings(tmp_path)) as plane, lab(plane) as desk:
        agent = await with_a_lease(desk)
        (lease,) = agent.held.values()
        query = f"attempt=1&nonce={lease['nonce']}&sha256={'0' * 64}"
        method, path, route = {
            "results": (
                "PUT",
                f"/internal/v1/chunks/{lease['chunk_id']}/results?{query}",
                "/internal/v1/chunks/{chunk_id}/results",
            ),
            "sync": (
                "POST",
                "/internal/v1/agents/pod-0/sync",
                "/internal/v1/agents/{agent_id}/sync",
            ),
        }[what]
        url, key = httpx.URL(plane.url), desk.http.headers["Authorization"]
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: weir\r\nAuthorization: {key}\r\n"
        writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        samples = plane.services.metrics
        await eventually(lambda: samples.get_sample_value(IN_FLIGHT) == 1)
        writer.close()
        await eventually(lambda: samples.get_sample_value(IN_FLIGHT) == 0)
        answered = {"method": method, "route": route, "status": "400"}
        assert samples.get_sample_value(ANSWERED, answered) == 1
        assert await plane.services.storage.keys("results") == []
        assert await agent.finish(lease) == "accepted"


async def test_results_that_are_sent_again_are_read_to_their_end(tmp_path: Path) -> None:
    """The answer came amid the body, whose rest was then taken for a request, and refused: a client
    that reads nothing while it sends never saw that its results were there."""
    async with running(make_settings(tmp_path)) as plane, lab(plane) as desk:
        agent = await with_a_lease(desk)
        (lease,) = agent.held.values()
        lines = await agent.lines(lease)
        content = b"".join(
            json.dumps(result_line(item["line"], "x" * 50_000)).encode() + b"\n" for item in lines
        )
        first = await agent.put_results(lease, content)
        assert first.status_code == 201
        fence = f"attempt={lease['attempt']}&nonce={lease['nonce']}&lines={len(lines)}"
        path = f"/internal/v1/chunks/{lease['chunk_id']}/results?{fence}"
        url, key = httpx.URL(plane.url), desk.http.headers["Authorization"]
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            f"PUT {path}&sha256={hashlib.sha256(content).hexdigest()} HTTP/1.1\r\nHost: weir\r\n"
            f"Authorization: {key}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        )
        writer.write(content[:100_000])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.read(1)
        writer.write(content[100_000:])
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")
        found = await reader.read()
        writer.close()
        assert first.json()["upload_id"].encode() in found
        assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"201", b"200"]
