"""`/healthz`, `/readyz` and `/metrics`: for probes and Prometheus, without a key."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import REGISTRY, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from weir_controlplane.agents import metrics as agents
from weir_controlplane.batches import metrics as batches
from weir_controlplane.dispatch import metrics as dispatch
from weir_controlplane.eta import metrics as eta
from weir_controlplane.levels import Current
from weir_controlplane.services import Services, ServicesDep
from weir_controlplane.store.database import OUTAGES, is_read_only

READY_WITHIN_S = 2.0
DATABASE_UP = Gauge("weir_controlplane_database_up", "1 while this replica can use the database.")
_LEVELS = (agents.LEVELS, batches.LEVELS, dispatch.LEVELS, eta.LEVELS)
router = APIRouter()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(services: ServicesDep) -> JSONResponse:
    """The database answers, and may be written to."""
    error = await _outage(services)
    if error is not None:
        return JSONResponse(
            {
                "status": "not ready",
                "database": "read-only" if is_read_only(error) else type(error).__name__,
            },
            status_code=503,
            headers={"Retry-After": "5"},
        )
    return JSONResponse({"status": "ok"})


@router.get("/metrics")
async def metrics(services: ServicesDep) -> PlainTextResponse:
    """Prometheus metrics: the process's own and those of this application.

    The database is asked each time: a replica without one is scraped as before, and serves nobody.
    What it read last is shown for two minutes.
    """
    DATABASE_UP.set(await _outage(services) is None)
    page = generate_latest(Current(REGISTRY, _LEVELS)) + generate_latest(services.metrics)
    return PlainTextResponse(page, media_type=CONTENT_TYPE_LATEST)


async def _outage(services: Services) -> Exception | None:
    """Why the database is of no use within `READY_WITHIN_S`; None when it is.

    One that is read-only is of none: no batch gets on, and no agent gets or hands in work.
    """
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            await services.database.check()
    except OUTAGES as error:
        return error
    return None
