"""Log probabilities are bounded together with tokens and choices, never without a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.agent.conftest import StartAgent
from tests.agent.test_bodies import BOUNDS
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine
from weir_agent.chunks.asked import CHAT, COMPLETIONS, tokens_that_fill
from weir_agent.chunks.bodies import BodyError, prepare

LARGE = replace(
    BOUNDS,
    max_output_tokens=None,
    max_logprobs=20,
    max_prompt_tokens=100_000,
    result_max_bytes=262_144,
)
LONG = [{"role": "user", "content": "a word and another " * 50_000}]


def chat_logprobs(tokens: int, top: int) -> str:
    """The shortest that vLLM writes: nearly all have more digits."""
    one: dict[str, Any] = {"token": "", "logprob": 0.0, "bytes": []}
    content = [{**one, "top_logprobs": [one] * top} for _ in range(tokens)]
    return json.dumps({"content": content}, separators=(",", ":"))


def completion_logprobs(tokens: int, top: int) -> str:
    """The same of a completion."""
    best = {chr(97 + rank): -1.0 for rank in range(top + 1)}
    parts = {
        "text_offset": [0] * tokens,
        "token_logprobs": [-1.0] * tokens,
        "tokens": ["a"] * tokens,
        "top_logprobs": [best] * tokens,
    }
    return json.dumps(parts, separators=(",", ":"))


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_a_choice_ends_only_where_its_answer_would_not_be_kept(top: int) -> None:
    for url, body, answer in (
        (CHAT, {"logprobs": True, "top_logprobs": top}, chat_logprobs),
        (COMPLETIONS, {"logprobs": top}, completion_logprobs),
    ):
        most = tokens_that_fill(url, body, result_max_bytes=262_144)
        assert most is not None
        assert len(answer(most, top)) > 262_144
        assert most * (top + 1) < 33_000  # objects that are made at once, of a choice


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, {}),
        (CHAT, {"logprobs": False, "top_logprobs": 0}),
        (CHAT, {"logprobs": None}),
        (COMPLETIONS, {"logprobs": None}),
        (COMPLETIONS, {"prompt": "x"}),
    ],
)
def test_without_log_probabilities_nothing_is_bounded(url: str, body: dict[str, Any]) -> None:
    assert tokens_that_fill(url, body, result_max_bytes=4_096) is None
    prompt = {"messages": LONG} if url == CHAT else {"prompt": [97] * 100_000}
    asked = {**prompt, **body, "echo": url == COMPLETIONS, "n": 4, "max_tokens": 1_000_000}
    assert prepare(url, asked, bounds=LARGE, cache_salt="salt").items() >= asked.items()


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (COMPLETIONS, {"prompt": [97] * 2_000, "logprobs": 20}),
        (COMPLETIONS, {"prompt": [[97] * 700] * 3, "logprobs": 20}),
        (COMPLETIONS, {"prompt": [97] * 700, "logprobs": 20, "n": 3}),
        (COMPLETIONS, {"prompt": "a word and another " * 2_000, "logprobs": 20, "max_tokens": 0}),
        (CHAT, {"messages": LONG, "logprobs": True}),
        (CHAT, {"messages": LONG}),  # vLLM makes them for echo alone
        (CHAT, {"messages": LONG, "logprobs": False, "top_logprobs": None}),
        (CHAT, {"messages": [{"content": [{"type": "text", "text": "word " * 10_000}]}],
                "logprobs": True, "top_logprobs": 5}),
    ],
)  # fmt: skip
def test_a_prompt_whose_log_probabilities_are_no_result_is_refused(
    url: str, body: dict[str, Any]
) -> None:
    with pytest.raises(BodyError, match=r"echo gives .* 262144 bytes .* echo out"):
        prepare(url, {**body, "echo": True}, bounds=LARGE, cache_salt="salt")
    assert prepare(url, body, bounds=LARGE, cache_salt="salt").items() >= body.items()
    scored = {**body, "echo": True, "truncate_prompt_tokens": 100}
    assert prepare(url, scored, bounds=LARGE, cache_salt="salt")["echo"]


def test_log_probabilities_that_the_answer_leaves_out_are_refused() -> None:
    body = {"messages": [], "logprobs": True, "include_reasoning": False}
    with pytest.raises(BodyError, match="leave logprobs or include_reasoning out"):
        prepare(CHAT, body, bounds=LARGE, cache_salt="salt")
    for name in ("logprobs", "include_reasoning"):
        rest = {key: value for key, value in body.items() if key != name}
        assert prepare(CHAT, rest, bounds=LARGE, cache_salt="salt").items() >= rest.items()


async def test_lines_enter_the_engine_with_the_tokens_that_can_be_kept(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """The engine is told no more of a line's length than that either."""
    lines = completion_lines(2, max_tokens=50_000)
    lines[1]["body"]["logprobs"] = 20
    control_plane.add_chunk(lines)
    engine = FakeEngine()
    async with start_agent(engine) as running:
        await running.until(lambda: control_plane.done)
    free, bounded = sorted(engine.executed, key=lambda line: line.line)
    assert (free.most_tokens, free.expected_output_tokens) == (None, 50_000)
    assert bounded.most_tokens == 1_561
    assert bounded.expected_output_tokens is not None
    assert bounded.expected_output_tokens <= 1_561
