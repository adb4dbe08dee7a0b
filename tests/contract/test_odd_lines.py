"""Lines that no one would write on purpose, through a real control plane and a real agent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import openai
from openai.types import Batch

from tests.agent.conftest import Running
from tests.controlplane.support import Plane, batch_reaches, make_settings, running
from tests.support.fake_engine import FakeEngine
from weir_agent.agent import Agent
from weir_agent.settings import load_settings
from weir_agent.supervisor import bind

ENDPOINT: Final = "/v1/completions"
MODEL = "sample"


def line(custom_id: str, **body: object) -> bytes:
    whole = {"model": MODEL, "prompt": "x", "max_tokens": 4, **body}
    value = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": whole}
    return json.dumps(value).replace("Infinity", "1e999").encode()  # which every parser reads


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


ODD: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 200),
    "half a character": ({"prompt": "cut \ud83d"}, 400),
    "half a name": ({"\ud83d": 1}, 400),
    "NUL": ({"prompt": "a\0b"}, 200),
    "a huge number": ({"seed": 10**400}, 400),
    "infinity": ({"temperature": 1e999}, 400),
    "infinity within": ({"logit_bias": {"5": [-1e999]}}, 400),
    "deep": ({"stop": nested(50)}, 200),
    "line ends": ({"prompt": "a\r\n\u2028\u0085b"}, 200),
    "no prompt": ({"prompt": None}, 200),
    "an unknown field": ({"colour": "red"}, 400),
    "a stream": ({"stream": True, "stream_options": {"include_usage": True}}, 200),
    "custom \ud83d id": ({}, 200),
}


@contextlib.asynccontextmanager
async def agent_of(plane: Plane, folder: Path) -> AsyncIterator[None]:
    """An agent of this control plane over a fake engine."""
    settings = load_settings(
        agent_id="agent-1",
        data_dir=folder,
        control_plane_url=plane.url,
        control_plane_key=await plane.key(scope="agent"),
        lookahead_lines_per_s=10_000,
    )
    engine = FakeEngine()
    with contextlib.closing(bind("127.0.0.1", 0)) as bound:
        agent = Running(Agent(settings, engine), engine, bound)
        try:
            yield
        finally:
            await agent.stop()


async def statuses_of(client: openai.AsyncOpenAI, batch: Batch) -> dict[str, int]:
    found: dict[str, int] = {}
    for file_id in (batch.output_file_id, batch.error_file_id):
        assert file_id is not None
        for text in (await client.files.content(file_id)).text.splitlines():
            item = json.loads(text)
            assert item["custom_id"] not in found
            found[item["custom_id"]] = item["response"]["status_code"]
    return found


async def test_each_line_is_answered_once_and_none_stops_another(tmp_path: Path) -> None:
    async with running(make_settings(tmp_path, models=(MODEL,))) as plane:
        key = await plane.tenant_key("acme")
        content = b"\n".join(line(name, **body) for name, (body, _) in ODD.items())
        async with (
            agent_of(plane, tmp_path / "agent"),
            openai.AsyncOpenAI(base_url=f"{plane.url}/v1", api_key=key) as client,
        ):
            file = await client.files.create(file=("in.jsonl", content), purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
            )
            found = await statuses_of(client, await batch_reaches(client, batch.id, "completed"))
    assert found == {name: status for name, (_, status) in ODD.items()}
