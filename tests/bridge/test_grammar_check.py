"""A grammar that vLLM reads for minutes ends its line; the loop of online requests goes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from tests.agent.test_facade import line
from tests.bridge.engine_host import Ask, EngineHost, numbers, text
from tests.bridge.test_engine_outputs import POLICY
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

    async def run() -> int:
        engine = Engine()
        view = OfflineView(engine, FinalText(None), GrammarCheck(validate))
        refused = asyncio.create_task(answer(view, params(5_000)))
        turns = 0
        while not refused.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(VLLMValidationError, match=r"more than 0\.25 s to read"):
            await refused
        assert engine.taken == 0
        await answer(view, params(5))
        assert engine.taken == 1
        return turns

    assert asyncio.run(run()) > 5


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


def test_what_was_read_in_time_after_all_is_not_refused_for_ever() -> None:
    """A process that stood still for seconds refused the lines of a whole batch from then on."""
    go_on = threading.Event()

    def stand_still(_: Any) -> None:  # noqa: ANN401
        assert go_on.wait(60)

    async def run() -> None:
        check = GrammarCheck(stand_still, most_s=0.01)
        with pytest.raises(VLLMValidationError, match="make it simpler"):
            await check.check(params(9))
        go_on.set()
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(VLLMValidationError):
                    await check.check(params(9))
                    return
                await asyncio.sleep(0.01)

    try:
        asyncio.run(run())
    finally:
        go_on.set()


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


def test_lines_of_one_grammar_that_never_ends_wait_for_one_reading() -> None:
    end = threading.Event()
    read = 0

    def hang(_: Any) -> None:  # noqa: ANN401
        nonlocal read
        read += 1
        assert end.wait(60)

    async def run() -> None:
        check = GrammarCheck(hang, most_s=0.01)
        first = asyncio.create_task(check.check(params(9)))
        others = [asyncio.create_task(check.check(params(9))) for _ in range(8)]
        await asyncio.sleep(0)
        first.cancel()
        answers = await asyncio.gather(*others, return_exceptions=True)
        assert ["make it simpler" in str(answer) for answer in answers] == [True] * 8

    try:
        asyncio.run(asyncio.wait_for(run(), 30))
    finally:
        end.set()
    assert read == 1


def test_a_grammar_that_gets_no_turn_is_told_so_and_tried_again() -> None:
    end = threading.Event()

    def hang(asked: Any) -> None:  # noqa: ANN401
        if "1,5}" not in asked.structured_outputs.json["pattern"]:
            assert end.wait(60)

    async def run() -> None:
        check = GrammarCheck(hang, most_s=0.01, turn_s=0.05)
        for repetitions in (8, 9):
            with pytest.raises(VLLMValidationError, match="make it simpler"):
                await check.check(params(repetitions))
        with pytest.raises(VLLMValidationError, match="submit the line again"):
            await check.check(params(5))
        end.set()
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(VLLMValidationError):
                    await check.check(params(5))
                    return

    try:
        asyncio.run(run())
    finally:
        end.set()


def test_a_line_is_told_that_its_grammar_is_at_fault(
    host: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be compiled, and two that nothing satisfies: vLLM says only "error"."""
    driver = host.use_weir({"policy": POLICY})
    manager = host.core.structured_output_manager
    compiled = manager._create_grammar

    def compile_grammar(request: Any) -> Any:  # noqa: ANN401 - vLLM is not typed
        if request.request_id.startswith("broken"):
            raise RuntimeError("check failed")
        return compiled(request)

    monkeypatch.setattr(manager, "_create_grammar", compile_grammar)
    itself = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
    for name, shape in (("broken", {"regex": "[ab]{8}"}), ("empty", {"json": itself})):
        params = {"structured_outputs": StructuredOutputsParams(**shape)}
        host.add(Ask(id=name, prompt=text(numbers(9), 30), offline=True, params=params))
    params = {
        "structured_outputs": StructuredOutputsParams(regex="[ab]{8}"),
        "allowed_token_ids": [99],
    }
    host.add(Ask(id="ruled-out", prompt=text(numbers(9), 30), offline=True, params=params))
    ends = host.ends(3)
    assert [end for end, _ in ends.values()] == ["error"] * 3
    assert "cannot be compiled" in ends["broken"][1]
    assert "allows no token here" in ends["empty"][1]
    assert "or allowed_token_ids, bad_words or stop_token_ids rule out" in ends["ruled-out"][1]
    assert driver.telemetry()["requests"] == 0
