"""A database connection that is lost is told in one line: no defect, hence no stack to read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from tests.controlplane.support import eventually, make_settings
from tests.controlplane.test_batchjobs_leases import with_a_job
from weir_controlplane import app
from weir_controlplane.app import create_app, make_services
from weir_controlplane.batchjobs import worker
from weir_controlplane.batchjobs.leases import INPUTS, claim
from weir_controlplane.services import Component, Services

pytestmark = pytest.mark.postgres


async def cut_off(services: Services, *_arguments: object) -> None:
    """Work in whose midst the connection is ended."""
    async with services.database.transaction() as session:
        await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


async def test_under_a_job(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "take_in", cut_off)
    async with with_a_job(tmp_path, postgres_url) as services:
        work = await claim(services, INPUTS)
        assert work is not None
        with capture_logs() as logs:
            await worker.work_on(services, work)
    (told,) = [log for log in logs if log["event"] == "batchjob_failed"]
    assert (told["uid"], told["exc_info"]) == ("uid-1", False)


async def test_under_a_background_task(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "RESTART_AFTER_S", 0.01)
    runs = 0

    async def third_time_lucky(services: Services) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await cut_off(services)
        if runs == 2:
            raise ValueError("a defect")
        await asyncio.Event().wait()

    async def thrice() -> bool:
        return runs == 3

    services = make_services(make_settings(tmp_path, postgres_url))
    trial = create_app(services, [Component(name="trial", background=(third_time_lucky,))])
    with capture_logs() as logs:
        async with trial.router.lifespan_context(trial):
            await eventually(thrice)
    told = [(log["event"], "exc_info" in log) for log in logs if log.get("component") == "trial"]
    assert told == [("background_task_waits", False), ("background_task_failed", True)]
