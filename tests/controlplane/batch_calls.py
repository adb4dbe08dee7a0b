"""What a tenant's client does to have a batch: lines, an upload, a create."""

from __future__ import annotations

import json
from typing import Any, Final

import openai

ENDPOINT: Final = "/v1/chat/completions"


def lines(count: int, *, model: str = "tiny", prefix: str = "c") -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
    return b"\n".join(
        json.dumps(
            {"custom_id": f"{prefix}{n}", "method": "POST", "url": ENDPOINT, "body": body}
        ).encode()
        for n in range(count)
    )


async def upload(client: openai.AsyncOpenAI, content: bytes) -> str:
    return (await client.files.create(file=("in.jsonl", content), purpose="batch")).id


def creation(file_id: str, **changes: object) -> dict[str, Any]:
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    return body | changes


async def create(client: openai.AsyncOpenAI, file_id: str, window: str = "24h") -> str:
    batch = await client.batches.create(
        input_file_id=file_id,
        endpoint=ENDPOINT,
        completion_window=window,  # type: ignore[arg-type]
    )
    return batch.id
