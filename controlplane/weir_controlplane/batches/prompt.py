"""What can be told from a line's body without an engine: its prompt text and token estimates.

Never raises for a strange body: what is wrong with it is found in the engine, as that line's
own error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

BYTES_PER_TOKEN = 4  # usual for English; an estimate for quotas and chunk sizes only
MAX_OUTPUT_TOKENS = 1 << 20  # of one choice
# Of a line that asks for more an agent makes none: it fails alone, and must not fail its batch by
# the quota, or have more tokens than the index has bits for.
MAX_CHOICES = 128
_TEXT_MEMBERS = frozenset({"type", "text"})
_MESSAGE_MEMBERS = frozenset({"role", "content"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The text that an engine would see first, and estimates in tokens.

    The estimates count more than ``text``, which is what lines are put in order by.
    """

    text: bytes
    prompt_tokens: int
    output_tokens: int


def read_prompt(body: dict[str, Any], *, default_output_tokens: int) -> Prompt:
    """The prompt of a chat or completion body."""
    is_chat = "messages" in body
    encoded = _encoded(_chat_text(body) if is_chat else _text(body.get("prompt")))
    size_bytes = len(encoded) + (_bytes_beside_text(body) if is_chat else 0)
    return Prompt(
        text=encoded,
        prompt_tokens=size_bytes // BYTES_PER_TOKEN + 1,
        output_tokens=_output_tokens(body, default_output_tokens),
    )


def _chat_text(body: dict[str, Any]) -> str:
    parts = []
    if body.get("tools"):  # chat templates put tools before the messages
        parts.append(_text(body["tools"]))
    for message in _messages(body):
        if isinstance(message, dict):
            parts.append(f"<{message.get('role')}>")
            parts.append(_text(message.get("content")))
        else:
            parts.append(_text(message))
    return "".join(parts)


def _messages(body: dict[str, Any]) -> list[Any]:
    messages = body["messages"]
    return messages if isinstance(messages, list) else [messages]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    texts = _texts(value)
    return json.dumps(value) if texts is None else "".join(texts)


def _texts(value: object) -> list[str] | None:
    """The texts of a list whose parts all have one."""
    if not isinstance(value, list) or not value:
        return None
    found = [part.get("text") if isinstance(part, dict) else part for part in value]
    texts = [text for text in found if isinstance(text, str)]
    return texts if len(texts) == len(found) else None


def _bytes_beside_text(body: dict[str, Any]) -> int:
    """What chat templates render too: calls of tools, documents, what parts have beside a text."""
    beside = [body[name] for name in ("documents", "chat_template_kwargs") if body.get(name)]
    beside += _beside_texts(body.get("tools"))
    for message in _messages(body):
        if isinstance(message, dict):
            beside.append(_others(message, _MESSAGE_MEMBERS))
            beside += _beside_texts(message.get("content"))
    return sum(len(_encoded(json.dumps(value, ensure_ascii=False))) for value in beside if value)


def _beside_texts(value: object) -> list[dict[str, Any]]:
    """What `_text` leaves out of a list's parts."""
    if not isinstance(value, list) or _texts(value) is None:
        return []  # it leaves nothing out
    return [_others(part, _TEXT_MEMBERS) for part in value if isinstance(part, dict)]


def _others(members: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {
        name: value for name, value in members.items() if name not in known and value is not None
    }


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _output_tokens(body: dict[str, Any], default: int) -> int:
    """The most tokens that all choices of all prompts may have together."""
    asked = (
        _count(body.get(name), MAX_OUTPUT_TOKENS)
        for name in ("max_completion_tokens", "max_tokens")
    )
    each = next(filter(None, asked), default)
    choices = max(1, *(_count(body.get(name), MAX_CHOICES) for name in ("n", "best_of")))
    return each * min(choices * _prompts(body), MAX_CHOICES)


def _prompts(body: dict[str, Any]) -> int:
    """How many prompts a completion has, each a text or a list of tokens; a chat is one."""
    prompt = body.get("prompt")
    if "messages" in body or not isinstance(prompt, list):
        return 1
    return 1 if {str, list}.isdisjoint(map(type, prompt)) else len(prompt)


def _count(value: object, most: int) -> int:
    """A number that a body asks for, at most ``most``; 0 of what the engine takes for none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        return 0
    return int(min(value, most))  # 8.0 is an 8 too, and 1e999 is infinite
