"""How much a line's body asks for: choices, tokens, log probabilities. Reading only.

What is malformed is the engine's to refuse: here it counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Less than any takes: what is reckoned with them never costs a line an answer that fits.
_LOGPROB_BYTES = {CHAT: 36, COMPLETIONS: 8}
_TEXT_TOKEN_BYTES = 8  # more than most tokens have, for the same reason


def prompts(body: Mapping[str, Any]) -> list[Any]:
    """The prompts of a completion, each a text or a list of tokens; one, unknown, of a chat."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not {str, list}.isdisjoint(map(type, prompt)):
        return prompt
    return [prompt]


def choices_a_prompt(body: Mapping[str, Any]) -> int:
    """How many answers each prompt gets."""
    n = body.get("n")
    return int(n) if isinstance(n, int | float) and n > 1 else 1  # 8.0 is an 8 too


def output_tokens(body: Mapping[str, Any]) -> int | None:
    """The most tokens that a line may produce a choice, where it says so."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def logprobs_a_token(url: str, body: Mapping[str, Any]) -> int:
    """How many log probabilities the answer has for each token; the token's own is one more."""
    asked = body.get("logprobs")
    if asked is None or asked is False or (url == CHAT and not asked):
        return 0
    top = body.get("top_logprobs") if url == CHAT else asked
    return 1 + (int(top) if isinstance(top, int | float) else 0)


def logprobs_a_prompt_token(url: str, body: Mapping[str, Any]) -> int:
    """How many log probabilities the answer has for each token of the prompt.

    vLLM makes those of a chat's prompt for ``echo`` alone, whether it has ``logprobs`` or not.
    """
    if not body.get("echo"):
        return 0
    return logprobs_a_token(url, {**body, "logprobs": True} if url == CHAT else body)


def tokens_that_fill(url: str, body: Mapping[str, Any], *, result_max_bytes: int) -> int | None:
    """The tokens at which the log probabilities of one choice alone are too large a result.

    None without log probabilities. From there on more of them change nothing: vLLM would make a
    million objects, in the loop that serves online requests, of an answer that is not kept.
    """
    each = logprobs_a_token(url, body)
    return result_max_bytes // (each * _LOGPROB_BYTES[url]) + 1 if each else None


def echoed_bytes(url: str, body: Mapping[str, Any]) -> int:
    """What the log probabilities of the prompt take in an answer with ``echo``, at the least."""
    each = logprobs_a_prompt_token(url, body)
    if not each:
        return 0
    if url == CHAT:  # once, however many choices there are
        lengths = [sum(_least_tokens(text) for text in _texts(body.get("messages")))]
    else:
        lengths = [_least_tokens(prompt) for prompt in prompts(body)] * choices_a_prompt(body)
    most = body.get("truncate_prompt_tokens")
    if isinstance(most, int | float) and most >= 0:
        lengths = [min(length, int(most)) for length in lengths]
    return sum(lengths) * each * _LOGPROB_BYTES[url]


def content_parts(messages: object) -> Iterator[dict[str, Any]]:
    """The parts of the messages of a chat whose content has parts."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part


def _texts(messages: object) -> Iterator[str]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
    for part in content_parts(messages):
        if isinstance(part.get("text"), str):
            yield part["text"]


def _least_tokens(prompt: object) -> int:
    if isinstance(prompt, list):
        return len(prompt)
    return len(prompt.encode()) // _TEXT_TOKEN_BYTES if isinstance(prompt, str) else 0
