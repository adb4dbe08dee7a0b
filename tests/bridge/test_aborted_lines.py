"""What an engine cuts off is no answer, whatever vLLM's application makes of it."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engine_contract import line
from weir_agent.asgi_call import Receive, Scope, Send
from weir_agent.engine import EngineGoneError
from weir_agent.vllm_bridge.facade import OfflineView
from weir_agent.vllm_bridge.final_text import FinalText

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def engine_that_ends_with(
    finish_reason: str, stop_reason: str | None = None, *, status: int = 200
) -> Any:  # noqa: ANN401 - imports vLLM
    """An engine whose application says that a tool was called, however the output ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from weir_agent.vllm_bridge.serving import VllmEngine

    class Client:
        async def generate(self, *_: object, **__: object) -> AsyncGenerator[Any, None]:
            output = SimpleNamespace(
                index=0, token_ids=[7], finish_reason=finish_reason, stop_reason=stop_reason
            )
            yield SimpleNamespace(num_cached_tokens=0, outputs=[output])

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        params = SimpleNamespace(extra_args=None, max_tokens=8)
        async for _ in OfflineView(Client(), FinalText(None)).generate("prompt", params, "r"):
            pass
        body = json.dumps({"choices": [{"finish_reason": "tool_calls"}]}).encode()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    llm = SimpleNamespace(errored=False)
    return VllmEngine(llm, identity="", app=app, offline_app=app, models=())


async def test_a_tool_call_that_the_engine_cut_off_is_no_answer() -> None:
    with pytest.raises(EngineGoneError):
        await engine_that_ends_with("abort").execute(line(1))
    outcome = await engine_that_ends_with("stop").execute(line(1))
    assert outcome.body["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_line_is_told_why_the_engine_refused_it() -> None:
    """vLLM's application says "Internal server error", whatever the reason."""
    refused = engine_that_ends_with("error", "its grammar is too slow", status=500)
    outcome = await refused.execute(line(1))
    assert outcome.status_code == 400
    assert outcome.body["error"]["message"] == "its grammar is too slow"
    outcome = await engine_that_ends_with("error", status=500).execute(line(1))
    assert outcome.status_code == 500


async def test_the_engines_report_is_waited_for_as_long_as_a_step_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine with steps of many seconds was killed as hung: each answer came too late."""
    engine = engine_that_ends_with("stop")
    monkeypatch.setattr("weir_agent.vllm_bridge.serving.UTILITY_TIMEOUT_S", 0.01)

    async def answer_late(_name: str) -> dict[str, int]:
        await asyncio.sleep(0.1)
        return {"steps": 3}

    monkeypatch.setattr(
        engine._llm, "engine_core", SimpleNamespace(call_utility_async=answer_late), raising=False
    )
    assert await engine.telemetry() == {"steps": 3}
