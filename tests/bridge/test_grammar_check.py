"""A grammar that vLLM reads for minutes ends its line; the loop of online requests goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from tests.agent.test_facade import line
from weir_agent.vllm_bridge.facade import CURRENT, OfflineView, Submission
from weir_agent.vllm_bridge.final_text import FinalText
from weir_agent.vllm_bridge.grammar_check import GrammarCheck
from weir_agent.vllm_bridge.render_turn import RenderTurn

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def params(repetitions: int) -> Any:  # noqa: ANN401 - vLLM is not typed
    schema = {"type": "string", "pattern": f"(a|b)*c{{1,{repetitions}}}"}
    return SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))


def validate(asked: Any) -> None:  # noqa: ANN401
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    validate_xgrammar_grammar(asked)


class Engine:
    """Stands for AsyncLLM: validates in the loop of its caller."""

    def __init__(self) -> None:
        self.taken = 0

    async def generate(
        self,
        _: object,
        asked: Any,  # noqa: ANN401
        *__: object,
        **___: object,
    ) -> AsyncGenerator[Any, None]:
        validate(asked)
        self.taken += 1
        yield SimpleNamespace(outputs=())


async def answer(view: OfflineView, asked: Any) -> None:  # noqa: ANN401
    CURRENT.set(Submission(line=line(), turn=RenderTurn(asyncio.Lock())))
    async for _ in view.generate("prompt", asked, "r"):
        pass


def test_a_pattern_that_takes_seconds_to_read_is_refused_while_the_loop_goes_on() -> None:
    validate(params(1))  # what is imported once is not measured

    async def run() -> float:
        engine = Engine()
        view = OfflineView(engine, FinalText(None), GrammarCheck(validate))
        refused = asyncio.create_task(answer(view, params(5_000)))
        longest_s, before_s = 0.0, time.monotonic()
        while not refused.done():
            await asyncio.sleep(0.01)
            now_s = time.monotonic()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
        with pytest.raises(VLLMValidationError, match=r"more than 0\.25 s to read"):
            await refused
        assert engine.taken == 0
        await answer(view, params(5))
        assert engine.taken == 1
        return longest_s

    assert asyncio.run(run()) < 1.0


def test_a_grammar_is_read_once_for_all_lines_that_have_it() -> None:
    read: list[str] = []

    def note(asked: Any) -> None:  # noqa: ANN401
        read.append(str(asked.structured_outputs.json["pattern"]))
        raise ValueError("vLLM says so itself")

    async def run() -> None:
        check = GrammarCheck(note)
        for repetitions in (1, 2, 1, 1):
            await check.check(params(repetitions))
        await check.check(SamplingParams())

    asyncio.run(run())
    assert [pattern[-4:] for pattern in read] == ["1,1}", "1,2}"]


def test_what_never_ends_is_given_up_and_others_are_read_meanwhile() -> None:
    end = threading.Event()

    def hang(asked: Any) -> None:  # noqa: ANN401
        if "1,9}" in asked.structured_outputs.json["pattern"]:
            assert end.wait(60)

    async def run() -> None:
        check = GrammarCheck(hang, most_s=0.01)
        for _ in range(2):  # the second time it is known
            with pytest.raises(VLLMValidationError, match="make it simpler"):
                await check.check(params(9))
        await check.check(params(1))

    try:
        asyncio.run(asyncio.wait_for(run(), 30))
    finally:
        end.set()
