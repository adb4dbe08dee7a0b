"""An engine without a model: answers after a delay, counts who asked, dies when it is told to.

The contract test in tests/agent holds it against the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from weir_agent.asgi_call import Receive, Scope, Send
from weir_agent.engine import (
    EngineBusyError,
    EngineGoneError,
    LineOutcome,
    OfflineLine,
    ServedModel,
)


class FakeEngine:
    """Implements ``weir_agent.agent.ServingEngine``."""

    def __init__(self, *, delay_s: float = 0.0, held: bool = False) -> None:
        """``held``: no line ends until ``hold`` is set."""
        self.models = (ServedModel(name="sample", revision="", max_model_len_tokens=4096),)
        self.identity = "fake"
        self.profile: Mapping[str, Any] = {}
        self.dead = False
        self.delay_s = delay_s
        self.hold = asyncio.Event()
        if not held:
            self.hold.set()
        self.holds: Callable[[OfflineLine], bool] = lambda _line: True
        self.refuse_times = 0
        self.executed: list[OfflineLine] = []
        self.resident: set[int] = set()
        self.most_resident = 0
        self.cancelled: list[int] = []
        self.policies: list[Mapping[str, Any]] = []
        self.silent = False
        self.step_s = 0.0  # it answers when that has passed
        self.step_mean_s = 0.01
        self.aborts = asyncio.Event()  # what runs then is ended without an answer
        self.killed = False
        self.stopped = False
        self.passes_over = False  # lines wait in it, and it runs none
        self.on_line: Callable[[OfflineLine], None] = lambda _line: None

    async def execute(self, line: OfflineLine) -> LineOutcome:
        if self.dead:
            raise EngineGoneError("dead")
        if self.refuse_times:
            self.refuse_times -= 1
            raise EngineBusyError("full")
        self.executed.append(line)
        self.resident.add(line.line)
        self.most_resident = max(self.most_resident, len(self.resident))
        self.on_line(line)
        try:
            await asyncio.sleep(self.delay_s)
            if self.holds(line):
                await self._held()
            if self.aborts.is_set():
                raise EngineGoneError("aborted")
        except asyncio.CancelledError:
            self.cancelled.append(line.line)
            raise
        finally:
            self.resident.discard(line.line)
        if self.dead:
            raise EngineGoneError("died")
        return LineOutcome(status_code=200, body=answer_to(line.body), cached_tokens=2)

    def _running(self) -> int:
        return 0 if self.passes_over else len(self.resident)

    async def _held(self) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self.hold, self.aborts)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        if self.silent or self.step_s > 2:
            raise TimeoutError
        if self.dead:
            raise EngineGoneError("dead")
        self.policies.append(policy)

    async def latency_profile(self) -> Mapping[str, Any]:
        return self.profile

    async def telemetry(self) -> Mapping[str, Any]:
        if self.step_s:
            await asyncio.sleep(self.step_s)
        while self.silent:  # noqa: ASYNC110 - tests set it
            await asyncio.sleep(0.05)
        if self.dead:
            raise EngineGoneError("dead")
        return {
            "total_blocks": 100,
            "block_size_tokens": 32,
            "online_kv_blocks": 10,
            "online_reuse_blocks": 0,
            "offline_kv_blocks": 5,
            "free_kv_blocks": 85,
            "offline_served_tokens": 3 * len(self.executed),
            "offline_waiting": len(self.resident) - (running := self._running()),
            "offline_running": running,
            "step_mean_s": self.step_mean_s,
        }

    def kill(self) -> None:
        self.killed = True
        self.dead = True

    async def stop(self, *, within_s: float) -> None:
        self.stopped = within_s > 0

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An online application: streams three events, or answers 404."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        await receive()
        if scope["path"] != "/v1/completions":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for text in (b"a", b"b", b"c"):
            await asyncio.sleep(self.delay_s)
            event = b'data: {"choices":[{"text":"' + text + b'"}]}\n\n'
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def answer_to(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the fake engine answers to a body."""
    choices = [{"text": f"answer to {body.get('prompt')}"}] * body.get("n", 1)
    return {
        "object": "text_completion",
        "choices": choices,
        "usage": {"prompt_tokens": 5, "completion_tokens": 3 * len(choices)},
    }


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
