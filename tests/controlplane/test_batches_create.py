"""`POST /v1/batches`: what is refused, what is a repetition, who comes at once (§8.6, §8.7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from sqlalchemy import update
from starlette.requests import Request
from structlog.testing import capture_logs
from typing_extensions import override

from tests.controlplane.batch_calls import create, creation, lines, upload
from tests.controlplane.fleet import Fleet
from tests.controlplane.support import Plane, eventually, make_settings, running
from weir_controlplane.batches.creation import CreateCall, create_batch
from weir_controlplane.keys.auth import tenant_of
from weir_controlplane.services import Services
from weir_controlplane.store.models import Batch

STANDING = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
async def plane(tmp_path: Path, database_url: str) -> AsyncIterator[Plane]:
    settings = make_settings(tmp_path, database_url, chunk_lines=4, min_completion_window_s=1)
    async with running(settings) as plane:
        yield plane


async def test_content_errors_fail_the_batch_before_any_line_runs(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    """§8.6: the first 100 listed, and nothing to lease."""
    broken = lines(3) + b"\n{\n" + lines(1) + b"\n" + lines(1, model="huge", prefix="h")
    batch_id = await create(client, await upload(client, broken))
    batch = await Fleet(plane.services).until(client, batch_id, "failed")
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line, error.param) for error in batch.errors.data] == [
        ("invalid_json_line", 4, None),
        ("duplicate_custom_id", 5, "custom_id"),
        ("model_mismatch", 6, "body.model"),
    ]
    assert batch.failed_at is not None
    assert (batch.output_file_id, batch.error_file_id, batch.usage) == (None, None, None)
    assert await Fleet(plane.services).chunks(batch_id) == []
    await client.files.delete(batch.input_file_id)  # no longer in use


async def test_an_empty_file_is_a_content_error(plane: Plane, client: openai.AsyncOpenAI) -> None:
    batch_id = await create(client, await upload(client, b"\n \n"))
    batch = await Fleet(plane.services).until(client, batch_id, "failed")
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [error.code for error in batch.errors.data] == ["empty_file"]


@STANDING
@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/dinner"}, "endpoint"),
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "9999h"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"metadata": {"k": 7}}, "metadata.k"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
            "output_expires_after.seconds",
        ),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "\x00"}, "input_file_id"),
        ({"metadata": {"k": "\x00"}}, "metadata"),
        ({"metadata": {"k": "cut \ud83d"}}, "metadata"),
        ({"metadata": {"\ud83d": "x"}}, "metadata"),
    ],
)
async def test_a_wrong_create_names_the_field(
    tenant: httpx.AsyncClient, changes: dict[str, Any], param: str
) -> None:
    files = {"file": ("in.jsonl", lines(1))}
    file = (await tenant.post("/v1/files", data={"purpose": "batch"}, files=files)).json()
    content = json.dumps(creation(file["id"], **changes))
    headers = {"Content-Type": "application/json"}
    answer = await tenant.post("/v1/batches", content=content, headers=headers)
    assert answer.status_code == (404 if changes == {"input_file_id": "file-none"} else 400)
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"].startswith(f"{param}: ")
    assert "Value error" not in answer.text
    assert (await tenant.get("/v1/batches")).json()["data"] == []


@STANDING
async def test_a_window_out_of_bounds_is_told_the_bounds(tenant: httpx.AsyncClient) -> None:
    answer = await tenant.post("/v1/batches", json=creation("file-1", completion_window="9999h"))
    assert answer.json()["error"]["message"].endswith(
        "between 1d and 7d (a whole number of s, m, h or d)"
    )


@STANDING
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"{", "is not JSON: Expecting property name enclosed in double quotes at character 2"),
        (b"[" * 100_000, "is not JSON: it is not UTF-8, nests too deep"),
        (b"\xff", "is not JSON: it is not UTF-8"),
        (b'{"input_file_id": ' + b"9" * 5000 + b"}", "a number of more than 4300 digits"),
    ],
)
async def test_a_body_that_is_no_json_is_a_400(
    tenant: httpx.AsyncClient, content: bytes, message: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await tenant.post("/v1/batches", content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.json()["error"]["param"] is None
    assert message in answer.json()["error"]["message"]


@STANDING
async def test_a_body_of_another_content_type_is_told_which_one(tenant: httpx.AsyncClient) -> None:
    content = json.dumps(creation("file-none"))
    headers = {"Content-Type": "text/plain"}
    answer = await tenant.post("/v1/batches", content=content, headers=headers)
    assert answer.status_code == 400
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


async def test_an_input_that_the_store_has_lost_is_named_in_the_log(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    """It is tried again without end, and `batch_work_failed` says for which object."""
    file_id = await upload(client, lines(1))
    (path,) = (plane.services.settings.data_dir / "files").rglob(file_id)
    path.unlink()
    with capture_logs() as logs:
        batch_id = await create(client, file_id)
        await eventually(lambda: any(log["event"] == "batch_work_failed" for log in logs))
    told = next(log for log in logs if log["event"] == "batch_work_failed")
    assert told["batch_id"] == batch_id
    assert "FileNotFoundError" in told["error"]
    assert file_id in told["error"]


async def test_a_file_of_another_purpose_is_refused(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    file = await client.files.create(file=b"x", purpose="user_data")
    answer = await raw.post("/v1/batches", json=creation(file.id))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_purpose"


async def test_a_file_in_use_cannot_be_deleted(plane: Plane, client: openai.AsyncOpenAI) -> None:
    """§8.7: 400, by which batch."""
    file_id = await upload(client, lines(1))
    batch_id = await create(client, file_id)
    with pytest.raises(openai.BadRequestError, match=batch_id):
        await client.files.delete(file_id)
    fleet = Fleet(plane.services)
    await fleet.until(client, batch_id, "in_progress")
    await fleet.finish(batch_id)
    await fleet.until(client, batch_id, "completed")
    assert (await client.files.delete(file_id)).deleted


async def test_a_file_is_either_taken_or_deleted(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    """§8.7: create and delete lock the file's row."""
    for _ in range(10):
        file_id = await upload(client, lines(1))
        created, deleted = await asyncio.gather(
            raw.post("/v1/batches", json=creation(file_id)), raw.delete(f"/v1/files/{file_id}")
        )
        assert (created.status_code, deleted.status_code) in {(200, 400), (404, 200)}


# --- §8.7: creates that are repeated -----------------------------------------------------------


async def repeated(raw: httpx.AsyncClient, body: dict[str, Any], *counts: int) -> list[str]:
    ids = []
    for count in counts:
        answer = await raw.post(
            "/v1/batches", json=body, headers={"x-stainless-retry-count": str(count)}
        )
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["id"])
    return ids


async def test_a_clients_own_retry_makes_no_second_batch(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    """§8.7."""
    body = creation(await upload(client, lines(1)), metadata={"a": "b"})
    first, again, third = await repeated(raw, body, 0, 1, 2)
    assert first == again == third


async def test_the_stock_clients_retry_after_a_lost_answer_makes_no_second_batch(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    """§8.7: the client itself repeats the call; only the network is made to fail."""
    file_id = await upload(client, lines(1))

    class LosesAnswers(httpx2.AsyncHTTPTransport):
        lost = 0

        @override
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            response = await super().handle_async_request(request)
            if request.method == "POST" and self.lost < 2:
                self.lost += 1
                await response.aread()
                await response.aclose()
                raise httpx2.ReadTimeout("lost", request=request)
            return response

    transport = LosesAnswers()
    async with openai.AsyncOpenAI(
        base_url=f"{plane.url}/v1",
        api_key=client.api_key,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as unlucky:
        batch_id = await create(unlucky, file_id)
    assert transport.lost == 2
    assert [batch.id async for batch in client.batches.list()] == [batch_id]


async def test_each_retry_count_matches_once(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    """§8.7: two creates meant as two, both retried, stay two."""
    body = creation(await upload(client, lines(1)))
    one, other, first_retry, second_retry, third_retry = await repeated(raw, body, 0, 0, 1, 1, 1)
    assert one != other
    assert {first_retry, second_retry} == {one, other}
    assert third_retry not in {one, other}


async def test_a_create_meant_anew_is_a_new_batch(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    """§8.7: not marked as a repeat, or of another body, or made by no lower count."""
    body = creation(await upload(client, lines(1)))
    first, second = await repeated(raw, body, 0, 0)
    (other,) = await repeated(raw, {**body, "metadata": {"x": "y"}}, 1)
    (window,) = await repeated(raw, {**body, "completion_window": "48h"}, 1)
    assert len({first, second, other, window}) == 4
    high, low = await repeated(raw, {**body, "metadata": {"z": "z"}}, 2, 1)
    assert high != low


async def test_a_call_that_its_own_repeat_overtakes_makes_no_second_batch(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.7: it waited in a busy replica until its client gave it up and sent it again."""
    body = creation(await upload(client, lines(1)))
    waiting, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow(services: Services, call: CreateCall) -> Batch:
        if not call.retry_count:
            waiting.release()
            await go_on.wait()
        return await create_batch(services, call)

    monkeypatch.setattr("weir_controlplane.batches.endpoints.create_batch", slow)
    calls = [asyncio.create_task(repeated(raw, body, 0)) for _ in range(2)]
    for _ in calls:
        await waiting.acquire()
    (first,) = await repeated(raw, body, 1)
    go_on.set()
    (one,), (other,) = await asyncio.gather(*calls)
    assert first in {one, other}
    assert one != other  # two creates that were meant as two
    (anew,) = await repeated(raw, body, 0)
    assert anew not in {one, other}


async def test_a_call_that_is_overtaken_while_its_key_is_looked_up_makes_no_second_batch(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.7: the first wait for a busy database is for whose the call is."""
    body = creation(await upload(client, lines(1)))
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Request, services: Services) -> str | None:
        if request.headers.get("x-stainless-retry-count") == "0":
            waiting.set()
            await go_on.wait()
        return await tenant_of(request, services)

    monkeypatch.setattr("weir_controlplane.limits.tenant_of", slow)
    overtaken = asyncio.create_task(repeated(raw, body, 0))
    await waiting.wait()
    (batch_id,) = await repeated(raw, body, 1)
    go_on.set()
    assert await overtaken == [batch_id]


@pytest.mark.parametrize("action", ["read", "cancelled", "old"])
async def test_a_batch_that_its_client_knows_is_not_matched(
    plane: Plane, raw: httpx.AsyncClient, client: openai.AsyncOpenAI, action: str
) -> None:
    """§8.7: not read or cancelled since, and under 30 minutes old."""
    body = creation(await upload(client, lines(1)))
    (first,) = await repeated(raw, body, 0)
    if action == "read":
        await client.batches.retrieve(first)
    elif action == "cancelled":
        await client.batches.cancel(first)
    else:
        async with plane.services.database.transaction() as session:
            await session.execute(update(Batch).values(created_at=Batch.created_at - 1801))
    (second,) = await repeated(raw, body, 1)
    assert first != second


async def test_another_tenants_create_is_not_matched(
    plane: Plane, raw: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    body = creation(await upload(client, lines(1)))
    await repeated(raw, body, 0)
    async with plane.client(await plane.tenant_key("other")) as stranger:
        answer = await stranger.post(
            "/v1/batches", json=body, headers={"x-stainless-retry-count": "1"}
        )
    assert answer.status_code == 404


async def test_an_idempotency_key_makes_one_batch(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    """§8.7: as long as the batch; another body: 400."""
    body = creation(await upload(client, lines(1)))
    headers = {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(
        *(raw.post("/v1/batches", json=body, headers=headers) for _ in range(5))
    )
    assert len({answer.json()["id"] for answer in answers}) == 1
    await client.batches.cancel(answers[0].json()["id"])
    again = await raw.post("/v1/batches", json=body, headers=headers)
    assert again.json()["id"] == answers[0].json()["id"]
    other = await raw.post("/v1/batches", json={**body, "metadata": {"a": "b"}}, headers=headers)
    assert other.status_code == 400
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    assert answers[0].json()["id"] in other.json()["error"]["message"]


async def test_twenty_clients_at_once_make_twenty_batches(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    file_id = await upload(client, lines(8))
    ids = await asyncio.gather(*(create(client, file_id) for _ in range(20)))
    assert len(set(ids)) == 20
    listed = [batch.id async for batch in client.batches.list(limit=7)]
    assert sorted(listed) == sorted(ids)
    fleet = Fleet(plane.services)
    for batch_id in ids:
        await fleet.until(client, batch_id, "in_progress")
        await fleet.finish(batch_id)
    for batch_id in ids:
        batch = await fleet.until(client, batch_id, "completed")
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 8


async def test_creates_and_validation_never_wait_in_a_circle(
    raw: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    """Locks of tenant, batch and file beside foreign keys; a deadlock would answer 503."""
    body = creation(await upload(client, lines(8)))
    for _ in range(4):
        answers = await asyncio.gather(*(raw.post("/v1/batches", json=body) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}


# --- progress, cancelling, expiry --------------------------------------------------------------
