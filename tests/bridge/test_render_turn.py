"""Long batch lines do not queue up in front of online prompts where vLLM renders both."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncGenerator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engine_contract import line
from weir_agent.asgi_call import Receive, Scope, Send
from weir_agent.engine import EngineGoneError
from weir_agent.vllm_bridge.facade import OfflineView
from weir_agent.vllm_bridge.final_text import FinalText

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


class Renderer:
    """Where vLLM renders; ``ends`` says how the next renderings end, the last holds for the rest.

    A line that was rendered stays in the engine until ``answered``.
    """

    def __init__(self, *ends: str) -> None:
        self.ends = list(ends) or ["rendered"]
        self.go = asyncio.Semaphore(0)
        self.answered = asyncio.Event()
        self.now, self.most_at_once, self.in_engine = 0, 0, 0

    def has_rendered(self, lines: int) -> bool:
        return self.in_engine == lines

    async def app(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            await self.go.acquire()
        finally:
            self.now -= 1
        if end == "raises":
            raise RuntimeError("rendering failed")
        if end == "rendered":
            for part in ("a", "b"):  # a line of two prompts
                params = SimpleNamespace(extra_args=None, max_tokens=8)
                async for _ in OfflineView(self, FinalText(None)).generate(part, params, "r"):
                    pass
        status = 200 if end == "rendered" else 400
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def generate(self, *_: object, **__: object) -> AsyncGenerator[Any, None]:
        self.in_engine += 1
        await self.answered.wait()
        yield SimpleNamespace(num_cached_tokens=0, outputs=[])


def engine_with(renderer: Renderer) -> Any:  # noqa: ANN401 - imports vLLM
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from weir_agent.vllm_bridge.serving import VllmEngine

    llm = SimpleNamespace(errored=False)
    app = renderer.app
    return VllmEngine(llm, identity="", app=app, offline_app=app, models=())


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


async def test_an_online_prompt_waits_behind_one_batch_line_at_most() -> None:
    renderer = Renderer()
    engine = engine_with(renderer)
    lines = [asyncio.create_task(engine.execute(line(number))) for number in range(20)]
    for rendered in range(20):
        await until(lambda: renderer.now == 1)
        renderer.go.release()
        await until(partial(renderer.has_rendered, rendered + 1))
    assert renderer.most_at_once == 1
    renderer.answered.set()  # the second prompt of each
    assert [(await task).status_code for task in lines] == [200] * 20


@pytest.mark.parametrize("end", ["raises", "refused"])
async def test_a_line_that_is_not_rendered_lets_the_next_one_go(end: str) -> None:
    renderer = Renderer(end, end, "rendered")
    renderer.answered.set()
    engine = engine_with(renderer)
    lines = [asyncio.create_task(engine.execute(line(number))) for number in range(4)]
    for _ in lines:
        renderer.go.release()
    outcomes = await asyncio.gather(*lines, return_exceptions=True)
    assert [getattr(outcome, "status_code", None) for outcome in outcomes] == [
        *([None if end == "raises" else 400] * 2),
        200,
        200,
    ]
    assert renderer.most_at_once == 1


async def test_a_line_that_is_cancelled_while_it_waits_holds_nothing_up() -> None:
    renderer = Renderer()
    renderer.answered.set()
    engine = engine_with(renderer)
    lines = [asyncio.create_task(engine.execute(line(number))) for number in range(3)]
    await until(lambda: renderer.now == 1)
    lines[1].cancel()  # while it waits
    with contextlib.suppress(asyncio.CancelledError):
        await lines[1]
    renderer.go.release()
    assert (await lines[0]).status_code == 200
    await until(lambda: renderer.now == 1)
    renderer.go.release()
    assert (await lines[2]).status_code == 200
    assert renderer.most_at_once == 1


async def test_lines_that_wait_for_their_turn_end_with_the_engine() -> None:
    renderer = Renderer("refused")
    engine = engine_with(renderer)
    lines = [asyncio.create_task(engine.execute(line(number))) for number in range(3)]
    await until(lambda: renderer.now == 1)
    engine._llm.errored = True
    renderer.go.release()
    outcomes: list[Any] = await asyncio.gather(*lines, return_exceptions=True)
    assert outcomes[0].status_code == 400
    assert all(isinstance(outcome, EngineGoneError) for outcome in outcomes[1:])
