"""Places for requests at once: who gets them (§8.11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.agent_sim import SimAgent
from tests.controlplane.support import eventually, make_settings, running

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
