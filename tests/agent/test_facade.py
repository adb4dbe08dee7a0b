"""Who may say what class a request has (design §8, Security; §9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from vllm.sampling_params import SamplingParams

from weir_agent.engine import OfflineLine
from weir_agent.latency import TOKENS, TokenCount
from weir_agent.vllm_bridge.facade import CURRENT, OfflineView, OnlineView, Submission
from weir_agent.vllm_bridge.final_text import FinalText
from weir_agent.vllm_bridge.messages import read_tag
from weir_agent.vllm_bridge.render_turn import RenderTurn
from weir_engine.ids import RequestClass


class RecordingClient:
    """Stands for AsyncLLM."""

    model_config = "the model's"

    def __init__(self, *outputs: list[SimpleNamespace]) -> None:
        self.calls: list[tuple[dict[str, Any], int]] = []
        self.outputs = outputs or ([], [])

    async def generate(
        self, prompt: object, params: SimpleNamespace, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[Any, None]:
        self.calls.append((params.extra_args, priority))
        for index, outputs in enumerate(self.outputs):
            yield SimpleNamespace(
                num_cached_tokens=32 if index else None,
                prompt=prompt,
                request_id=request_id,
                outputs=outputs,
            )


def choice(index: int, tokens: int = 0, finish_reason: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(index=index, token_ids=[7] * tokens, finish_reason=finish_reason)


def params(extra_args: dict[str, Any] | None = None, **more: int) -> SimpleNamespace:
    return SimpleNamespace(extra_args=extra_args, **more)


def line(**changes: object) -> OfflineLine:
    values: dict[str, Any] = {
        "chunk_id": "chunk",
        "attempt": 1,
        "line": 7,
        "request_id": "r",
        "url": "/v1/completions",
        "body": {},
        "tenant": "acme",
        "group": "docs",
        "deadline_s": 99.0,
        "expected_output_tokens": 12,
    }
    return OfflineLine(**{**values, **changes})


def offline(client: RecordingClient) -> OfflineView:
    return OfflineView(client, FinalText(None))


def submitted(**changes: object) -> Submission:
    return Submission(line=line(**changes), turn=RenderTurn(asyncio.Lock()))


@pytest.mark.parametrize(
    "claim",
    [
        None,
        {"weir": {"class": "offline"}},
        {"weir": {"class": "offline", "solo": True}, "other": 1},
        {"weir": "nonsense"},
    ],
)
async def test_online_requests_are_online_whatever_they_claim(claim: dict[str, Any] | None) -> None:
    client = RecordingClient()
    async for _ in OnlineView(client).generate("p", params(claim), "r", priority=9):
        pass
    ((extra_args, priority),) = client.calls
    assert priority == 0
    assert read_tag(extra_args).request_class is RequestClass.ONLINE
    assert extra_args.get("other") == (claim or {}).get("other")


async def test_what_every_prompt_of_a_line_hit_is_counted() -> None:
    client, submission = RecordingClient(), submitted()
    token = CURRENT.set(submission)
    for prompt in ("a", "b", "c"):
        async for _ in offline(client).generate(prompt, params(), f"r-{prompt}"):
            pass
    CURRENT.reset(token)
    assert submission.cached_tokens == 3 * 32


async def test_offline_requests_carry_what_the_agent_knows_of_their_line() -> None:
    client, submission = RecordingClient(), submitted(solo=True)
    token = CURRENT.set(submission)
    async for _ in offline(client).generate("p", params({"weir": {}}), "r", priority=-5):
        pass
    CURRENT.reset(token)
    ((extra_args, priority),) = client.calls
    tag = read_tag(extra_args)
    assert priority == 1
    assert tag.request_class is RequestClass.OFFLINE
    assert (tag.tenant, tag.group, tag.deadline_s, tag.solo) == ("acme", "docs", 99.0, True)
    assert tag.expected_output_tokens == 12
    assert submission.cached_tokens == 32


async def test_the_tokens_of_an_online_response_are_counted_by_the_choices_of_its_events() -> None:
    """Two prompts with two choices each: those of the second come after those of the first."""
    client, count = RecordingClient([choice(0, 1), choice(1, 1)], [choice(1, 3)]), TokenCount()
    assert count.of(0) is None
    token = TOKENS.set(count)
    generations = [OnlineView(client).generate(p, params(n=2), f"r-{p}") for p in ("a", "b")]
    assert [count.of(number) for number in (0, None)] == [0, 0]
    async for _ in generations[1]:
        pass
    assert [count.of(number) for number in (0, 1, 2, 3, None)] == [0, 0, 1, 4, 5]
    await anext(generations[0])
    assert [count.of(number) for number in (0, 1, 2, 3, None)] == [1, 1, 1, 4, 7]
    TOKENS.reset(token)
    await generations[0].aclose()


async def executed(
    client: RecordingClient, asked: SimpleNamespace | SamplingParams, **changes: object
) -> Submission:
    submission = submitted(**changes)
    token = CURRENT.set(submission)
    async for _ in offline(client).generate("p", asked, "r"):
        pass
    CURRENT.reset(token)
    return submission


@pytest.mark.parametrize(
    ("reasons", "aborted"), [(["stop", "length"], False), (["stop", "abort"], True)]
)
async def test_it_is_noted_that_the_engine_cut_a_line_off(
    reasons: list[str], aborted: bool
) -> None:
    """vLLM answers such a line, and calls it ``tool_calls`` where a tool call was begun."""
    client = RecordingClient([choice(n, 2, reason) for n, reason in enumerate(reasons)])
    assert (await executed(client, params())).aborted is aborted


@pytest.mark.parametrize(("asked", "most", "tokens"), [(100, 5, 5), (3, 5, 3), (100, None, 100)])
async def test_an_answer_that_would_not_be_kept_ends(
    asked: int, most: int | None, tokens: int
) -> None:
    sampling = params(max_tokens=asked, min_tokens=0)
    await executed(RecordingClient(), sampling, most_tokens=most)
    assert sampling.max_tokens == tokens


@pytest.mark.parametrize(
    ("asked", "reason", "cut"), [(100, "length", True), (100, "stop", False), (5, "length", False)]
)
async def test_an_answer_that_was_ended_early_is_no_answer(
    asked: int, reason: str, cut: bool
) -> None:
    client = RecordingClient([choice(0, 5, reason)])
    sampling = params(max_tokens=asked, min_tokens=0)
    assert (await executed(client, sampling, most_tokens=5)).cut is cut


@pytest.mark.parametrize("least", [0, 5, 6, 50])
async def test_what_is_made_of_parameters_can_be_read_by_the_engines_process(least: int) -> None:
    """One that cannot leaves it deaf: no online request is taken in until it is found to hang."""
    asked = SamplingParams(max_tokens=50, min_tokens=least, logprobs=20)
    client = RecordingClient([choice(0, 5, "length")])
    assert (await executed(client, asked, most_tokens=5)).cut
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=SamplingParams)
    assert (told.max_tokens, told.min_tokens) == (5, min(least, 5))


async def test_the_offline_view_works_for_a_line_only() -> None:
    with pytest.raises(PermissionError):
        await anext(offline(RecordingClient()).generate("p", params(), "r"))


@pytest.mark.parametrize("view", [OnlineView(RecordingClient()), offline(RecordingClient())])
async def test_requests_that_carry_parameters_of_their_own_are_refused(
    view: OnlineView | OfflineView,
) -> None:
    async def streamed() -> AsyncGenerator[str, None]:
        yield "part"

    token = CURRENT.set(submitted())
    for prompt, parameters in (
        (streamed(), params()),
        (SimpleNamespace(sampling_params=params()), params()),
        ("p", SimpleNamespace(beam_width=2)),
    ):
        with pytest.raises(NotImplementedError):
            await anext(view.generate(prompt, parameters, "r"))
    with pytest.raises(NotImplementedError):
        await view.add_request("r", "p", params())
    CURRENT.reset(token)


def test_everything_else_is_the_engines_own() -> None:
    assert OnlineView(RecordingClient()).model_config == "the model's"
