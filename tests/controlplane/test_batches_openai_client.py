"""The surface as the unmodified `openai` client uses it, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx2
import openai
import pytest
from typing_extensions import override

from tests.controlplane.fleet import Fleet
from tests.controlplane.support import Plane, batch_reaches, make_settings, running

ENDPOINT: Final = "/v1/chat/completions"


def line(custom_id: str, *, model: str = "tiny", url: str = ENDPOINT, text: str = "hi") -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    value = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(value).encode()


@pytest.fixture
async def plane(tmp_path: Path, database_url: str) -> AsyncIterator[Plane]:
    async with running(make_settings(tmp_path, database_url)) as plane:
        yield plane


async def test_a_batch_goes_in_and_every_line_comes_out_once(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    content = b"\n".join(line(f"line-{number}", text=f"doc {number % 7}") for number in range(100))
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.status, file.bytes, file.filename) == ("processed", len(content), "in.jsonl")
    assert (await client.files.wait_for_processing(file.id)).id == file.id
    batch = await client.batches.create(
        input_file_id=file.id,
        endpoint=ENDPOINT,
        completion_window="24h",
        metadata={"team": "data"},
    )
    assert batch.status == "validating"
    fleet = Fleet(plane.services)
    batch = await fleet.until(client, batch.id, "in_progress")
    assert batch.request_counts is not None
    assert batch.request_counts.total == 100
    await fleet.finish(batch.id, fails={5, 50})
    batch = await fleet.until(client, batch.id, "completed")
    assert batch.model == "tiny"
    assert batch.metadata == {"team": "data"}
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 98
    assert batch.request_counts.failed == 2
    assert batch.usage is not None
    assert batch.usage.total_tokens == 98 * 15
    assert batch.completed_at is not None
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    output = (await client.files.content(batch.output_file_id)).text.splitlines()
    errors = (await client.files.content(batch.error_file_id)).text.splitlines()
    answered = [json.loads(text) for text in output]
    failed = [json.loads(text) for text in errors]
    assert sorted(item["custom_id"] for item in answered + failed) == sorted(
        f"line-{number}" for number in range(100)
    )
    assert [item["custom_id"] for item in failed] == ["line-4", "line-49"]
    assert failed[0]["error"] is None
    assert failed[0]["response"]["status_code"] == 400
    assert answered[0]["response"]["body"]["echo"] == "line-0"
    assert answered[0]["id"].startswith("batch_req_")


class LosesAnswers(httpx2.AsyncHTTPTransport):
    """Loses the first answer, once nothing is left of the batch to cancel."""

    def __init__(self, batch_id: str, client: openai.AsyncOpenAI) -> None:
        super().__init__()
        self._batch_id, self._client = batch_id, client
        self.sent = 0

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self.sent += 1
        if self.sent > 1:
            return response
        assert response.status_code == 200
        await response.aread()
        await response.aclose()
        while (await self._client.batches.retrieve(self._batch_id)).status != "cancelled":
            pass
        raise httpx2.ReadTimeout("lost", request=request)


@pytest.mark.parametrize("call", ["cancel", "delete"])
async def test_what_is_done_is_no_error_to_a_client_that_lost_the_answer(
    plane: Plane, client: openai.AsyncOpenAI, call: str
) -> None:
    """The client itself repeats the call; only the network is made to fail."""
    file = await client.files.create(file=("in.jsonl", line("a")), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    if call == "delete":
        await client.batches.cancel(batch.id)
        await batch_reaches(client, batch.id, "cancelled")
    transport = LosesAnswers(batch.id, client)
    async with openai.AsyncOpenAI(
        base_url=f"{plane.url}/v1",
        api_key=client.api_key,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as unlucky:
        if call == "cancel":
            assert (await unlucky.batches.cancel(batch.id)).status == "cancelled"
        else:
            assert (await unlucky.files.delete(file.id)).deleted
        assert transport.sent == 2
    again = client.batches.cancel(batch.id) if call == "cancel" else client.files.delete(file.id)
    with pytest.raises(openai.APIStatusError):  # by hand it is another call, and too late
        await again
