"""BatchJobs whose input cannot be read end with their window, deliveries after some attempts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Response
from openai.types import Batch as ClientBatch
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from tests.controlplane.jobs import input_lines
from tests.controlplane.support import eventually
from tests.controlplane.test_batchjobs_api import Operator, answered, operator
from tests.controlplane.test_uris import give
from tests.support.serving import serve
from weir_controlplane.batchjobs.failing import count_stuck_jobs
from weir_controlplane.batchjobs.leases import MAX_ATTEMPTS
from weir_controlplane.batchjobs.service import TOPIC
from weir_controlplane.errors import StorageError
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.uris.rules import Uri
from weir_controlplane.uris.transfer import UriAccess

DAY_S = 86_400.0


class Source:
    """A server of inputs that fails until it is told to answer."""

    def __init__(self) -> None:
        self.fails = True
        self.app = FastAPI()
        self.app.get("/in.jsonl")(self._answer)

    async def _answer(self) -> Response:
        return Response(status_code=503) if self.fails else Response(input_lines(4))


@contextlib.asynccontextmanager
async def with_a_job(
    tmp_path: Path, database_url: str
) -> AsyncIterator[tuple[Operator, Source, dict[str, Any]]]:
    """The operator, with a job of 24 h whose source fails, and what it was put with."""
    source = Source()
    async with (
        serve(source.app) as url,
        operator(tmp_path, database_url, uri_private_hosts=("127.0.0.1",)) as op,
    ):
        prefix = {"tenant": "acme", "prefix": url, "writable": False}
        assert (await op.http.post("/admin/v1/uri-prefixes", json=prefix)).status_code == 201
        given: dict[str, Any] = {"input": {"uri": f"{url}/in.jsonl"}}
        await op.put(**given)
        yield op, source, given


async def change(op: Operator, **values: Any) -> None:  # noqa: ANN401
    async with op.lab.plane.services.database.transaction() as session:
        await session.execute(update(BatchJob).values(**values))


async def failures(op: Operator) -> int:
    async with op.lab.plane.services.database.read() as session:
        return (await session.execute(select(BatchJob.work_failures))).scalar_one()


async def tried_until(op: Operator, done: Callable[[dict[str, Any], int], bool]) -> dict[str, Any]:
    """The job, tried until ``done`` of it and its failures; nobody waits for its pauses."""
    view: dict[str, Any] = {}

    async def is_done() -> bool:
        nonlocal view
        async with op.lab.plane.services.database.transaction() as session:
            pause_over = update(BatchJob).where(BatchJob.work_nonce.is_(None))
            await session.execute(pause_over.values(work_lease_until=0.0))
        await op.lab.plane.services.nudge.send(TOPIC)
        view = await op.get()
        return done(view, await failures(op))

    await eventually(is_done)
    return view


async def stuck(op: Operator, count: int) -> None:
    """Waits until so many are told to be stuck."""

    async def is_told() -> bool:
        text = (await op.http.get("/metrics")).text
        return f'weir_batches_stuck{{stage="intake"}} {count}.0' in text

    await eventually(is_told)


async def test_a_job_whose_input_cannot_be_read_is_stuck_and_ends_with_its_window(
    tmp_path: Path, database_url: str
) -> None:
    async with with_a_job(tmp_path, database_url) as (op, _, _):
        view = await tried_until(op, lambda _, failed: failed >= MAX_ATTEMPTS + 1)
        assert (view["status"], view["waiting_reason"]) == ("pending", "InputUnavailable")
        assert "the server answers 503" in view["waiting_message"]
        await stuck(op, 1)
        await change(op, created_at=BatchJob.created_at - DAY_S)
        view = await tried_until(op, lambda view, _: view["status"] != "pending")
        assert view["status"] == "failed"
        (error,) = view["errors"]
        assert error["code"] == "input_unreadable"
        assert "completion window" in error["message"]
        assert "the server answers 503" in error["message"]
        await stuck(op, 0)
        assert (await op.http.delete("/internal/v1/batchjobs/uid-1")).status_code == 204


async def test_a_job_that_is_resumed_after_its_window_is_given_time_to_read_its_input(
    tmp_path: Path, database_url: str
) -> None:
    async with with_a_job(tmp_path, database_url) as (op, source, given):
        await tried_until(op, lambda _, failed: failed >= 3)
        await stuck(op, 1)
        await op.put(**given, suspended=True)
        await stuck(op, 0)
        await change(op, created_at=BatchJob.created_at - DAY_S, work_failures=MAX_ATTEMPTS)
        await op.put(**given, suspended=False)
        view = await tried_until(op, lambda _, failed: failed >= 3)
        assert view["status"] == "pending"
        source.fails = False
        view = await tried_until(op, lambda view, _: view["status"] == "in_progress")
        assert view["waiting_message"] is None


async def test_a_job_that_waits_for_its_tenants_quota_is_not_stuck(tmp_path: Path) -> None:
    async with operator(tmp_path, tenant_max_batches=1) as op:
        await op.put("uid-1")
        await op.put("uid-2")
        now_s = await op.lab.plane.services.database.now_s()
        await change(op, work_failures=5, work_lease_until=now_s + 60)
        assert (await op.get("uid-2"))["waiting_reason"] == "QuotaExceeded"
        async with op.lab.plane.services.database.read() as session:
            assert await count_stuck_jobs(session) == 0
        await change(op, work_error="InputUnavailable")
        await stuck(op, 1)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageError("the place is gone"), "the place is gone"),
        (KeyError("a fault of ours"), "an error inside the control plane"),
    ],
)
async def test_an_output_that_cannot_be_delivered_is_given_up_after_some_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    tries = failing_writes(monkeypatch, error)
    async with with_an_output(tmp_path) as (op, batch):
        view = await tried_until(op, lambda view, _: view["delivery"]["state"] != "pending")
        assert (view["delivery"]["state"], view["delivery"]["message"]) == ("failed", told)
        assert len(tries) == MAX_ATTEMPTS
        await op.lab.assert_whole(batch, 4)  # the results are where they were


async def test_an_output_is_not_given_up_for_outages_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = OperationalError("UPDATE batch_jobs", None, ConnectionError())
    failing_writes(monkeypatch, outage)
    async with with_an_output(tmp_path) as (op, _):
        view = await tried_until(op, lambda _, failed: failed > MAX_ATTEMPTS)
        assert view["delivery"]["state"] == "pending"


def failing_writes(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """Lets each delivery fail; where to they went."""
    tries: list[str] = []

    async def fail(self: UriAccess, uri: Uri, *_: object) -> None:  # noqa: ARG001
        tries.append(str(uri))
        raise error

    monkeypatch.setattr(UriAccess, "write", fail)
    return tries


@contextlib.asynccontextmanager
async def with_an_output(tmp_path: Path) -> AsyncIterator[tuple[Operator, ClientBatch]]:
    """The operator, with a job whose batch of four lines has ended, and that batch."""
    share = tmp_path / "share"
    share.mkdir()
    async with operator(tmp_path / "plane") as op:
        await give(op, f"file://{share}")
        yield op, await answered(op, lines=4, output_uri=f"file://{share}/out")
