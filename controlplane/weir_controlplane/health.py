"""`/healthz`, `/readyz` and `/metrics`: for probes and Prometheus, without a key."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from weir_controlplane.services import ServicesDep
from weir_controlplane.store.database import OUTAGES

READY_WITHIN_S = 2.0
router = APIRouter()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(services: ServicesDep) -> JSONResponse:
    """The database answers."""
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            await services.database.now_s()
    except OUTAGES as error:
        return JSONResponse(
            {"status": "not ready", "database": type(error).__name__},
            status_code=503,
            headers={"Retry-After": "5"},
        )
    return JSONResponse({"status": "ok"})


@router.get("/metrics")
async def metrics(services: ServicesDep) -> PlainTextResponse:
    """Prometheus metrics: the process's own and those of this application."""
    page = generate_latest(REGISTRY) + generate_latest(services.metrics)
    return PlainTextResponse(page, media_type=CONTENT_TYPE_LATEST)
