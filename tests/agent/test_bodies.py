"""What a batch line may ask for (design §8, Security: allow-list, bounds, no remote media)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from weir_agent.chunks.asked import CHAT, COMPLETIONS
from weir_agent.chunks.bodies import BodyBounds, BodyError, prepare

BOUNDS = BodyBounds(
    max_choices=4,
    max_logprobs=5,
    max_output_tokens=100,
    max_grammar_bytes=200,
    max_words=3,
    max_list_tokens=6,
    max_parts=8,
    max_prompt_tokens=60,
    result_max_bytes=4_096,
)


def prepared(url: str, **body: object) -> dict[str, Any]:
    return prepare(url, {"model": "m", **body}, bounds=BOUNDS, cache_salt="salt")


def test_what_is_allowed_passes_unchanged_with_the_tenants_salt_and_no_stream() -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "temperature": 0.5, "n": 4}
    assert prepared(CHAT, **asked) == {
        "model": "m",
        **asked,
        "stream": False,
        "cache_salt": "salt",
    }


@pytest.mark.parametrize(
    "field", ["stream", "priority", "cache_salt", "vllm_xargs", "request_id", "stream_options"]
)
def test_what_the_agent_alone_sets_is_taken_out(field: str) -> None:
    body = prepared(COMPLETIONS, prompt="x", **{field: "claimed"})
    assert body.get(field) != "claimed"


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x", "use_beam_search": True}, "use_beam_search"),
        (CHAT, {"messages": [], "chat_template": "{{ x }}"}, "chat_template"),
        (COMPLETIONS, {"prompt": "x", "messages": []}, "messages"),
        (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 5}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "x", "n": 5}, "n"),
        (COMPLETIONS, {"prompt": "x", "best_of": 5}, "best_of"),
        (COMPLETIONS, {"prompt": "x", "logprobs": 6}, "logprobs"),
        (CHAT, {"messages": [], "top_logprobs": 6}, "top_logprobs"),
        (CHAT, {"messages": [], "max_completion_tokens": 101}, "max_completion_tokens"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 101}, "max_tokens"),
        (COMPLETIONS, {"prompt": ["x"] * 5}, "prompt"),
        (COMPLETIONS, {"prompt": ["x", "y", "z"], "n": 2}, "prompt"),
        (COMPLETIONS, {"prompt": ["x", "y", "z"], "n": 2.0}, "prompt"),
        (COMPLETIONS, {"prompt": "x", "n": "500"}, "n"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": "101"}, "max_tokens"),
        (
            COMPLETIONS,
            {"prompt": "x", "structured_outputs": {"regex": "a" * 300}},
            "structured_outputs",
        ),
        (CHAT, {"messages": [], "response_format": {"schema": "a" * 300}}, "response_format"),
        (CHAT, {"messages": [], "tools": ["a" * 300]}, "tools"),
        (COMPLETIONS, {"prompt": "x", "stop": ["a", "b", "c", "d"]}, "stop"),
        (CHAT, {"messages": [], "stop": "a" * 300}, "stop"),
        (CHAT, {"messages": [], "bad_words": ["a", "b", "c", "d"]}, "bad_words"),
        (CHAT, {"messages": [], "bad_words": ["a" * 300]}, "bad_words"),
        (CHAT, {"messages": [], "logit_bias": {str(n): 1 for n in range(7)}}, "logit_bias"),
        (CHAT, {"messages": [], "allowed_token_ids": list(range(7))}, "allowed_token_ids"),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": list(range(7))}, "stop_token_ids"),
        (COMPLETIONS, {"prompt": "x", "top_k": 1 << 63}, "top_k"),
        (COMPLETIONS, {"prompt": [1, 10**30]}, "prompt"),
        ("/v1/embeddings", {"input": "x"}, "url"),
    ],
)
def test_a_refusal_names_the_field(url: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(BodyError) as refusal:
        prepared(url, **body)
    assert refusal.value.param == param
    assert refusal.value.as_body()["error"]["param"] == param


@pytest.mark.parametrize(
    ("url", "body", "told"),
    [
        (COMPLETIONS, {"prompt": "x", "n": 9}, "n is 9: give 1 to 4"),
        (CHAT, {"messages": [], "n": -1}, "n is -1: give 1 to 4"),
        (CHAT, {"messages": [], "n": 0}, "n is 0: give 1 to 4"),
        (CHAT, {"messages": [], "max_tokens": 101}, "max_tokens is 101: give 1 to 100"),
        (CHAT, {"messages": [], "echo": True, "max_tokens": 0}, "max_tokens is 0: give 1 to 100"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "max_tokens is 0: give 1 to 100"),
        (
            COMPLETIONS,
            {"prompt": "x", "echo": True, "max_tokens": -1},
            "max_tokens is -1: give 0 to 100",
        ),
        (COMPLETIONS, {"prompt": "x", "min_tokens": -1}, "min_tokens is -1: give 0 to 100"),
        (COMPLETIONS, {"prompt": "x", "logprobs": 6}, "logprobs is 6: give 0 to 5"),
    ],
)
def test_what_a_refusal_tells_to_give_is_what_the_engine_takes(
    url: str, body: dict[str, Any], told: str
) -> None:
    with pytest.raises(BodyError) as refusal:
        prepared(url, **body)
    assert str(refusal.value) == told


def test_a_completion_may_give_back_its_prompt_alone() -> None:
    assert prepared(COMPLETIONS, prompt="x", echo=True, max_tokens=0)["max_tokens"] == 0


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "cut \ud83d"}, "prompt"),
        (COMPLETIONS, {"prompt": "x", "stop": ["\ude00"]}, "stop"),
        (CHAT, {"messages": [{"role": "user", "content": [{"text": "\ud83d"}]}]}, "messages"),
        (CHAT, {"messages": [], "tools": [{"\ud83d": 1}]}, "tools"),
        (CHAT, {"messages": [], "\ud83d": 1}, r"\ud83d"),
    ],
)
def test_text_that_was_cut_within_a_character_is_refused(
    url: str, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(BodyError, match=r"\\ud83d|\\ude00") as refusal:
        prepared(url, **body)
    assert refusal.value.as_body()["error"]["param"] == param


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": "file:///etc/passwd"},
        {"type": "video_url", "video_url": {"url": "http://169.254.169.254/"}},
        {"type": "audio_url", "audio_url": {}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ],
)
def test_remote_media_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(BodyError):
        prepared(CHAT, messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "no list"},
        {"messages": [3, {"content": [4, {"type": "text", "text": "x"}]}]},
        {"messages": [], "n": "many"},
        {"messages": [], "logprobs": True},
    ],
)
def test_what_is_malformed_is_left_to_the_engine(body: dict[str, Any]) -> None:
    assert prepared(CHAT, **body)["cache_salt"] == "salt"


def test_lists_within_their_bounds_pass() -> None:
    asked = {
        "stop": ["a", "b", "c"],
        "bad_words": ["d", "e", "f"],
        "logit_bias": {str(n): -100 for n in range(6)},
        "allowed_token_ids": list(range(6)),
        "stop_token_ids": list(range(6)),
        "seed": -(1 << 63),
    }
    assert prepared(COMPLETIONS, prompt="x", **asked).items() >= asked.items()


TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 9}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [TEXT] * 8}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": ["x"] * 8}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [7] * 8}]}, "messages"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}] * 8}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", **{f"k{n}": 1 for n in range(25)}}]}, "messages"),
        (CHAT, {"messages": [], "tools": [[]] * 201}, "tools"),
        (COMPLETIONS, {"prompt": "x", "seed": [[]] * 9}, "seed"),
        (COMPLETIONS, {"prompt": [None] * 9}, "prompt"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"1": [[]] * 9}}, "logit_bias"),
    ],
)
def test_a_line_of_many_small_parts_is_refused(url: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(BodyError, match="too many parts") as refusal:
        prepared(url, **body)
    assert refusal.value.param == param


def test_parts_within_their_bound_pass() -> None:
    messages = [{"role": "user", "content": [TEXT] * 4}, {"role": "user", "content": [TEXT] * 2}]
    assert prepared(CHAT, messages=messages)["messages"] == messages
    assert prepared(CHAT, messages=[{"role": "user", "content": "x"}] * 8)


@pytest.mark.parametrize("prompt", [[1] * 61, [[1] * 3, [1] * 61]])
def test_a_prompt_longer_than_the_model_is_refused_before_its_tokens_are_looked_at(
    prompt: list[object],
) -> None:
    with pytest.raises(BodyError, match="prompt has 61 tokens: the model takes at most 60"):
        prepared(COMPLETIONS, prompt=prompt)
    cut = prepared(COMPLETIONS, prompt=prompt, truncate_prompt_tokens=5)
    assert cut["prompt"] == prompt


def test_tokens_are_not_walked_one_by_one() -> None:
    """Two million of them, which a line has room for, held up online answers for a second."""
    prompt = [1] * 200_000
    steps = 0

    def count(*_: object) -> Any:  # noqa: ANN401 - as sys.settrace has it
        nonlocal steps
        steps += 1
        return count

    sys.settrace(count)
    try:
        prepared(COMPLETIONS, prompt=prompt, truncate_prompt_tokens=5)
    finally:
        sys.settrace(None)
    assert steps < 5_000


def test_a_prompt_of_token_ids_is_one_prompt() -> None:
    assert prepared(COMPLETIONS, prompt=list(range(50)))["prompt"] == list(range(50))
