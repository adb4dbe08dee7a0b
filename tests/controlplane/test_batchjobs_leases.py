"""Leases on BatchJobs: renewed by who copies, soon free of who died (design.md §8.1, §8.2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tests.controlplane.jobs import ENDPOINT, input_lines
from tests.controlplane.support import eventually, make_settings, running
from tests.controlplane.test_batchjobs_api import operator, works
from tests.support.serving import serve
from weir_controlplane.app import make_services
from weir_controlplane.batchjobs.leases import claim
from weir_controlplane.leases import void_leases
from weir_controlplane.services import Services
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Tenant

PARTS = 8
PAUSE_S = 0.5
LEASE_S = 2  # machines that run other tests too stand still for a second


def slow_source(reads: list[str]) -> FastAPI:
    """A server whose objects take PARTS times PAUSE_S to read; notes each read in ``reads``."""
    app = FastAPI()

    @app.get("/{name}")
    async def read(name: str) -> StreamingResponse:
        reads.append(name)

        async def parts() -> AsyncIterator[bytes]:
            for line in input_lines(PARTS).splitlines(keepends=True):
                await asyncio.sleep(PAUSE_S)
                yield line

        return StreamingResponse(parts(), media_type="application/octet-stream")

    return app


async def test_an_input_that_takes_longer_than_a_lease_is_read_once(
    tmp_path: Path, database_url: str
) -> None:
    """§8.2: the control plane has several workers; the others leave the job to the first."""
    reads: list[str] = []
    given = {"work_lease_s": LEASE_S, "uri_private_hosts": ("127.0.0.1",)}
    async with serve(slow_source(reads)) as url, operator(tmp_path, database_url, **given) as op:
        prefix = {"tenant": "acme", "prefix": url, "writable": False}
        assert (await op.http.post("/admin/v1/uri-prefixes", json=prefix)).status_code == 201
        await op.put(input={"uri": f"{url}/in.jsonl"})
        done = await works(op, "uid-1")
        assert done["request_counts"] == {"total": PARTS, "completed": PARTS, "failed": 0}
        assert reads == ["in.jsonl"]
        assert [item.id for item in (await op.lab.openai.batches.list()).data] == [done["batch_id"]]


async def test_a_tenants_slow_inputs_do_not_hold_up_other_tenants(tmp_path: Path) -> None:
    """Servers may take as long as they like for each part of an input."""
    go_on = asyncio.Event()
    app = FastAPI()

    @app.get("/{name}")
    async def read(name: str) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            if name.startswith("slow"):
                await go_on.wait()
            yield input_lines(2)

        return StreamingResponse(parts(), media_type="application/octet-stream")

    hosts = ("127.0.0.1",)
    async with serve(app) as url, operator(tmp_path, uri_private_hosts=hosts) as op:
        await op.lab.plane.tenant_key("other")
        bound = await op.http.put("/admin/v1/namespaces/team-b", json={"batchjobs": "other"})
        assert bound.status_code == 200
        for tenant in ("acme", "other"):
            prefix = {"tenant": tenant, "prefix": url, "writable": False}
            assert (await op.http.post("/admin/v1/uri-prefixes", json=prefix)).status_code == 201
        slow = [f"uid-{number}" for number in range(6)]
        for uid in slow:
            await op.put(uid, input={"uri": f"{url}/slow-{uid}"})
        await asyncio.sleep(0.5)  # the workers take them
        await op.put("uid-other", namespace="team-b", input={"uri": f"{url}/fast"})
        await op.until("in_progress", "uid-other")
        assert {(await op.get(uid))["status"] for uid in slow} == {"pending"}
        go_on.set()
        for uid in slow:
            await op.until("in_progress", uid)


@contextlib.asynccontextmanager
async def with_a_job(
    tmp_path: Path, database_url: str | None = None, **given: object
) -> AsyncIterator[Services]:
    """Services on a database with one job, whose batch is still to be made."""
    services = make_services(make_settings(tmp_path, database_url, **given))
    await services.database.open()
    async with services.database.transaction() as session:
        session.add(Tenant(id="t", name="t", created_at=1.0))
        await session.flush()
        session.add(
            BatchJob(
                uid="uid-1", tenant_id="t", namespace="team-a", name="job-1",
                endpoint=ENDPOINT, completion_window="24h", priority=0, suspended=False,
                fingerprint="f", created_at=1.0, delivery="none", input_inline=input_lines(2),
            )
        )  # fmt: skip
    try:
        yield services
    finally:
        await services.database.close()


async def test_the_job_of_a_killed_replica_is_taken_up_when_its_lease_ends(
    tmp_path: Path, database_url: str
) -> None:
    """§8.1: a lease is as short as any, however long a copy takes."""
    async with with_a_job(tmp_path, database_url, work_lease_s=1) as services:
        assert await claim(services) is not None  # and then the process is killed

        async def taken() -> bool:
            return await claim(services) is not None

        await eventually(taken)


async def test_an_embedded_restart_takes_a_job_up_at_once(tmp_path: Path) -> None:
    """§8.9: its process lock proves that whoever held the lease is gone."""
    async with with_a_job(tmp_path, work_lease_s=3600) as services:
        assert await claim(services) is not None  # and then the process is killed
        assert await claim(services) is None
    async with running(make_settings(tmp_path)) as plane:

        async def is_submitted() -> bool:
            view = await plane.admin.get("/internal/v1/batchjobs/uid-1")
            return view.json()["batch_id"] is not None

        await eventually(is_submitted)


async def test_a_replica_that_starts_leaves_the_others_their_jobs(
    tmp_path: Path, database_url: str
) -> None:
    async with with_a_job(tmp_path, database_url) as services:
        assert await claim(services) is not None
        await void_leases(BatchJob)(services)
        embedded = database_url.startswith("sqlite")
        assert (await claim(services) is not None) == embedded
