"""The surface as the unmodified `openai` client uses it, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import openai
import pytest

from tests.controlplane.fleet import Fleet
from tests.controlplane.support import Plane, make_settings, running

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
