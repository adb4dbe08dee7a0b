"""Leases on BatchJobs: renewed by who copies, soon free of who died (design.md §8.1, §8.2)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from sqlalchemy import select

from tests.controlplane.jobs import ENDPOINT, input_lines
from tests.controlplane.support import eventually, make_settings, running
from tests.controlplane.test_batchjobs_api import Operator, operator, works
from tests.support.serving import serve
from weir_controlplane.app import make_services
from weir_controlplane.batchjobs.failing import count_stuck_jobs
from weir_controlplane.batchjobs.leases import (
    INPUTS,
    JobWork,
    claim,
    give_up,
    take_new,
    while_ours,
)
from weir_controlplane.batchjobs.worker import work_on
from weir_controlplane.leases import LeaseLostError, void_leases
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import File, Tenant
from weir_controlplane.uris import transfer

PARTS = 8
PAUSE_S = 0.5
HOSTS = ("127.0.0.1",)
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
    given = {"work_lease_s": LEASE_S, "uri_private_hosts": HOSTS}
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

    async with serve(app) as url, operator(tmp_path, uri_private_hosts=HOSTS) as op:
        await with_tenants(op, url)
        slow = [f"uid-{number}" for number in range(6)]
        for uid in slow:
            await op.put(uid, input={"uri": f"{url}/slow-{uid}"})
        await asyncio.sleep(0.5)  # the workers take them
        await op.put("uid-b", namespace="team-b", input={"uri": f"{url}/fast"})
        await op.until("in_progress", "uid-b")
        assert {(await op.get(uid))["status"] for uid in slow} == {"pending"}
        go_on.set()
        for uid in slow:
            await op.until("in_progress", uid)


async def with_tenants(op: Operator, url: str) -> None:
    """Of namespaces team-a, team-b and team-c; each may read what is at ``url``."""
    for tenant, namespace in (("acme", "team-a"), ("b", "team-b"), ("c", "team-c")):
        if namespace != "team-a":
            await op.lab.plane.tenant_key(tenant)
            path, body = f"/admin/v1/namespaces/{namespace}", {"batchjobs": tenant}
            assert (await op.http.put(path, json=body)).status_code == 200
        prefix = {"tenant": tenant, "prefix": url, "writable": False}
        assert (await op.http.post("/admin/v1/uri-prefixes", json=prefix)).status_code == 201


def trickling_source() -> FastAPI:
    """A server that gives ``fast`` at once, and of all else a byte now and then, without end."""
    app = FastAPI()

    @app.get("/{name}")
    async def read(name: str) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            if name == "fast":
                yield input_lines(2)
                return
            while True:
                yield b" "
                await asyncio.sleep(0.05)

        return StreamingResponse(parts(), media_type="application/octet-stream")

    return app


async def put_trickles(op: Operator, url: str) -> list[str]:
    """Jobs of two tenants, of each more than it may have workers, whose inputs never end."""
    uids = []
    for namespace in ("team-a", "team-b"):
        for number in range(3):
            uids.append(f"uid-{namespace}-{number}")
            await op.put(uids[-1], namespace=namespace, input={"uri": f"{url}/trickle"})
    return uids


async def test_inputs_that_never_end_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried again later; whoever comes next need not wait for that."""
    monkeypatch.setattr(transfer, "PATIENCE_S", 0.5)
    async with (
        serve(trickling_source()) as url,
        operator(tmp_path, uri_private_hosts=HOSTS) as op,
    ):
        await with_tenants(op, url)
        slow = await put_trickles(op, url)
        await op.put("uid-c", namespace="team-c", input={"uri": f"{url}/fast"})
        await op.until("in_progress", "uid-c")
        for uid in slow:

            async def is_said(uid: str = uid) -> bool:
                view = await op.get(uid)
                return (view["status"], view["waiting_reason"]) == ("pending", "InputUnavailable")

            await eventually(is_said)
            await op.http.post(f"/internal/v1/batchjobs/{uid}/cancel")


async def test_outputs_are_delivered_while_inputs_never_end(tmp_path: Path) -> None:
    async with (
        serve(trickling_source()) as url,
        operator(tmp_path / "plane", uri_private_hosts=HOSTS) as op,
    ):
        await with_tenants(op, url)
        share = {"tenant": "c", "prefix": f"file://{tmp_path}/share", "writable": True}
        assert (await op.http.post("/admin/v1/uri-prefixes", json=share)).status_code == 201
        await put_trickles(op, url)
        await asyncio.sleep(0.5)  # the workers take them
        out = f"file://{tmp_path}/share"
        await op.put("uid-c", namespace="team-c", lines=4, output_uri=out)
        done = await works(op, "uid-c")
        assert done["delivery"]["state"] == "done"


async def test_a_job_that_failed_comes_after_those_that_did_not(
    tmp_path: Path, database_url: str
) -> None:
    """Else jobs whose inputs take minutes to fail keep all workers, one after the other."""
    async with with_a_job(tmp_path, database_url) as services:
        work = await claim(services, INPUTS)
        assert work is not None
        await give_up(services, work, "InputUnavailable")
        async with services.database.transaction() as session:
            failed = await session.get_one(BatchJob, "uid-1")
            failed.work_lease_until = 0.0  # its pause is over
            session.add(a_job("uid-2", created_at=2.0))
        claimed = [await claim(services, INPUTS) for _ in range(2)]
        assert [item and item.uid for item in claimed] == ["uid-2", "uid-1"]


async def test_a_hang_in_one_replica_leaves_the_job_to_others(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.2: its files do not answer there, though the process lives and renews."""
    monkeypatch.setattr("weir_controlplane.leases.STILL_S", 0.5)
    async with with_a_job(tmp_path, database_url, work_lease_s=1) as hung:
        other = replace(make_services(hung.settings), database=hung.database)
        answers, create = threading.Event(), hung.storage._create

        def hang(key: str) -> object:
            answers.wait()
            return create(key)

        monkeypatch.setattr(hung.storage, "_create", hang)
        work = await claim(hung, INPUTS)
        assert work is not None
        working = asyncio.create_task(work_on(hung, work))
        try:

            async def is_stuck() -> bool:
                async with hung.database.read() as session:
                    return await count_stuck_jobs(session) == 1

            await eventually(is_stuck)
            async with hung.database.transaction() as session:
                job = await session.get_one(BatchJob, "uid-1")
                assert job.work_message == (
                    "nothing moved for 15 minutes: do the files, or what a URI names, hang?"
                )
                job.work_lease_until = 0.0  # its pause is over
            taken = await claim(other, INPUTS)
            assert taken is not None
            await work_on(other, taken)
            answers.set()
            await working  # what wakes up then changes nothing
            async with hung.database.read() as session:
                job = await session.get_one(BatchJob, "uid-1")
                assert job.batch_id is not None
                kept = (await session.execute(select(File.id))).scalars().all()
                assert kept == [job.input_file_id]
        finally:
            answers.set()
            await asyncio.gather(working, return_exceptions=True)


async def test_a_copy_whose_lease_is_lost_ends_at_its_next_block() -> None:
    work = JobWork(uid="uid-1", tenant_id="t", batch_id=None, nonce="n")
    answers = iter([True, False])

    async def blocks() -> AsyncIterator[bytes]:
        for block in (b"1", b"2", b"3"):
            yield block

    ours = while_ours(work, blocks(), lambda: next(answers))
    assert await anext(ours) == b"1"
    with pytest.raises(LeaseLostError):
        await anext(ours)


def a_job(uid: str, *, created_at: float) -> BatchJob:
    return BatchJob(
        uid=uid, tenant_id="t", namespace="team-a", name=f"job-{uid}",
        endpoint=ENDPOINT, completion_window="24h", priority=0, suspended=False,
        fingerprint="f", created_at=created_at, delivery="none", input_inline=input_lines(2),
    )  # fmt: skip


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
        session.add(a_job("uid-1", created_at=1.0))
    try:
        yield services
    finally:
        await services.database.close()


async def test_the_job_of_a_killed_replica_is_taken_up_when_its_lease_ends(
    tmp_path: Path, database_url: str
) -> None:
    """§8.1: a lease is as short as any, however long a copy takes."""
    async with with_a_job(tmp_path, database_url, work_lease_s=1) as services:
        assert await claim(services, INPUTS) is not None  # and then the process is killed

        async def taken() -> bool:
            return await claim(services, INPUTS) is not None

        await eventually(taken)


async def test_an_embedded_restart_takes_a_job_up_at_once(tmp_path: Path) -> None:
    """§8.9: its process lock proves that whoever held the lease is gone."""
    async with with_a_job(tmp_path, work_lease_s=3600) as services:
        assert await claim(services, INPUTS) is not None  # and then the process is killed
        assert await claim(services, INPUTS) is None
    async with running(make_settings(tmp_path)) as plane:

        async def is_submitted() -> bool:
            view = await plane.admin.get("/internal/v1/batchjobs/uid-1")
            return view.json()["batch_id"] is not None

        await eventually(is_submitted)


async def test_a_replica_that_starts_leaves_the_others_their_jobs(
    tmp_path: Path, database_url: str
) -> None:
    async with with_a_job(tmp_path, database_url) as services:
        assert await claim(services, INPUTS) is not None
        await void_leases(BatchJob)(services)
        embedded = database_url.startswith("sqlite")
        assert (await claim(services, INPUTS) is not None) == embedded


async def test_a_clock_that_was_ahead_keeps_no_job_waiting(
    tmp_path: Path, database_url: str
) -> None:
    """§8.1: its holder died before the database's clock was set right."""
    async with with_a_job(tmp_path, database_url) as services:
        assert await claim(services, INPUTS) is not None
        async with services.database.transaction() as session:
            job = await session.get_one(BatchJob, "uid-1")
            now_s = await clock_s(session)
            assert take_new(services, job, now_s) is None
            job.work_lease_until += 600.0
        assert await claim(services, INPUTS) is not None
        async with services.database.transaction() as session:
            job = await session.get_one(BatchJob, "uid-1")
            job.work_lease_until += 600.0
            assert take_new(services, job, await clock_s(session)) is not None
