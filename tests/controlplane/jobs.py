"""Batches for dispatch tests: submitted by the `openai` client, checked line by line."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import openai
from openai.types import Batch as ClientBatch

from tests.controlplane.agent_sim import SimAgent
from tests.controlplane.support import ENDED, Plane, batch_reaches, openai_client

ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


def input_lines(count: int, *, documents: int = 5, model: str = "tiny") -> bytes:
    """``count`` lines over shared documents; custom ids ``line-1`` and so on."""
    texts = [
        f"document {number % documents} " + "word " * 40 + f"question {number}"
        for number in range(1, count + 1)
    ]
    return b"\n".join(input_line(n, text, model=model) for n, text in enumerate(texts, 1))


def input_line(number: int, text: str, *, model: str = "tiny") -> bytes:
    """The line with custom id ``line-NUMBER`` and this prompt."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    value = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(value).encode()


@dataclass
class Lab:
    """A control plane with a tenant's client and a key for agents."""

    plane: Plane
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient

    def agent(self, agent_id: str = "pod-0", **given: Any) -> SimAgent:  # noqa: ANN401
        """A simulated agent."""
        return SimAgent(client=self.http, agent_id=agent_id, **given)

    async def submit(self, count: int, **given: Any) -> str:  # noqa: ANN401
        """The id of a batch that is in progress."""
        return await self.submit_content(input_lines(count, **given))

    async def submit_content(self, content: bytes) -> str:
        """The id of a batch of these lines that is in progress."""
        file = await self.openai.files.create(file=("in.jsonl", content), purpose="batch")
        batch = await self.openai.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
        )
        await self.until(batch.id, "in_progress")
        return batch.id

    async def until(self, batch_id: str, status: str) -> ClientBatch:
        """The batch once it has this status; fails when it ends otherwise."""
        return await batch_reaches(self.openai, batch_id, status)

    async def syncs_until(self, agent: SimAgent, done: Callable[[], bool], **given: Any) -> None:  # noqa: ANN401
        """Syncs until ``done``: what other tasks do in the background shows a little later."""
        async with asyncio.timeout(240):
            while not done():
                await agent.sync(**given)
                await asyncio.sleep(0.02)

    async def works_until(self, agent: SimAgent, batch_id: str, status: str) -> ClientBatch:
        """Lets the agent work until the batch has this status."""
        async with asyncio.timeout(240):
            while (batch := await self.openai.batches.retrieve(batch_id)).status != status:
                assert batch.status not in ENDED, batch
                await agent.work()
                await asyncio.sleep(0.02)
        return batch

    async def answers(self, batch: ClientBatch) -> dict[str, dict[str, Any]]:
        """Output and error lines by custom id; fails when a line is there twice."""
        found: dict[str, dict[str, Any]] = {}
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id is None:
                continue
            for text in (await self.openai.files.content(file_id)).text.splitlines():
                item = json.loads(text)
                assert item["custom_id"] not in found, f"{item['custom_id']} is there twice"
                found[item["custom_id"]] = item
        return found

    async def assert_whole(self, batch: ClientBatch, count: int) -> dict[str, dict[str, Any]]:
        """Every line is answered once, with its own answer where it has one."""
        found = await self.answers(batch)
        assert set(found) == {f"line-{number}" for number in range(1, count + 1)}
        for custom_id, item in found.items():
            if item["response"] is not None:
                assert item["response"]["body"]["echo"] == custom_id
        return found


@contextlib.asynccontextmanager
async def lab(plane: Plane) -> AsyncIterator[Lab]:
    """A lab on a running control plane."""
    tenant = await plane.tenant_key("acme")
    agent = await plane.key(scope="agent")
    async with (
        openai_client(plane, tenant) as client,
        plane.client(agent) as http,
    ):
        yield Lab(plane=plane, openai=client, http=http)
