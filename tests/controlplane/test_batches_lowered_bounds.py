"""Bounds that an administrator lowers hold for new inputs: what was taken in is carried through."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.batch_calls import creation, lines
from tests.controlplane.bench import put_submitted
from tests.controlplane.fleet import Fleet
from tests.controlplane.support import make_settings, running
from weir_controlplane.app import make_services
from weir_controlplane.batches.worker import work_once
from weir_controlplane.services import Services
from weir_controlplane.store.models import Batch

LINES = 12
INPUT = b"".join(
    json.dumps(
        {
            "custom_id": f"c{n}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "tiny", "prompt": "word " * 600, "max_tokens": 4},
        }
    ).encode()
    + b"\n"
    for n in range(1, LINES + 1)
)


@contextlib.asynccontextmanager
async def started(folder: Path, *, max_line_bytes: int) -> AsyncIterator[Services]:
    services = make_services(make_settings(folder, max_line_bytes=max_line_bytes))
    await services.database.open()
    try:
        yield services
    finally:
        await services.database.close()


async def test_a_batch_ends_whose_lines_are_longer_than_is_allowed_now(tmp_path: Path) -> None:
    async with started(tmp_path, max_line_bytes=4096) as services:
        async with services.storage.writer("files/in") as writer:
            await writer.write(INPUT)
        batch_id = await put_submitted(services.database, content=INPUT)
        assert await work_once(services)
        assert await Fleet(services).finish(batch_id) == LINES
    async with started(tmp_path, max_line_bytes=1024) as services:
        assert await work_once(services)
        async with services.database.read() as session:
            batch = await session.get_one(Batch, batch_id)
    assert batch.work_error is None
    assert (batch.status, batch.completed_lines) == ("completed", LINES)


@pytest.mark.parametrize(
    "headers", [{"Idempotency-Key": "k1"}, {"x-stainless-retry-count": "1"}], ids=["key", "retry"]
)
async def test_a_repeated_create_gets_its_batch_whose_window_is_not_allowed_any_more(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    """§8.7: a repeat is answered as the first call was."""
    first = {name: value for name, value in headers.items() if name == "Idempotency-Key"}
    async with running(make_settings(tmp_path)) as plane:
        key = await plane.tenant_key("t1")
        async with plane.client(key) as client:
            file = await client.post(
                "/v1/files", files={"file": ("in.jsonl", lines(2))}, data={"purpose": "batch"}
            )
            body = creation(file.json()["id"])
            body["completion_window"] = "7d"
            made = await client.post("/v1/batches", json=body, headers=first)
    assert made.status_code == 200, made.text
    lowered = make_settings(tmp_path, max_completion_window_s=2 * 86_400)
    async with running(lowered) as plane, plane.client(key) as client:
        again = await client.post("/v1/batches", json=body, headers=headers)
        new = await client.post("/v1/batches", json=body)
    assert again.json()["id"] == made.json()["id"]
    assert (new.status_code, new.json()["error"]["param"]) == (400, "completion_window")
