"""What can be told from a line's body without an engine: its prompt text and token estimates.

Never raises for a strange body: what is wrong with it is found in the engine, as that line's
own error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

BYTES_PER_TOKEN = 4  # usual for English; an estimate for quotas and chunk sizes only
MAX_OUTPUT_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The text that an engine would see first, and estimates in tokens."""

    text: bytes
    prompt_tokens: int
    output_tokens: int


def read_prompt(body: dict[str, Any], *, default_output_tokens: int) -> Prompt:
    """The prompt of a chat or completion body."""
    text = _chat_text(body) if "messages" in body else _text(body.get("prompt"))
    encoded = text.encode("utf-8", "surrogatepass")
    return Prompt(
        text=encoded,
        prompt_tokens=len(encoded) // BYTES_PER_TOKEN + 1,
        output_tokens=_output_tokens(body, default_output_tokens),
    )


def _chat_text(body: dict[str, Any]) -> str:
    parts = []
    if body.get("tools"):  # chat templates put tools before the messages
        parts.append(_text(body["tools"]))
    messages = body["messages"]
    for message in messages if isinstance(messages, list) else [messages]:
        if isinstance(message, dict):
            parts.append(f"<{message.get('role')}>")
            parts.append(_text(message.get("content")))
        else:
            parts.append(_text(message))
    return "".join(parts)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in value]
        if texts and all(isinstance(text, str) for text in texts):
            return "".join(str(text) for text in texts)
    return json.dumps(value)


def _output_tokens(body: dict[str, Any], default: int) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return min(value, MAX_OUTPUT_TOKENS)
    return default
