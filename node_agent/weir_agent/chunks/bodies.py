"""What an offline line may ask of the engine: a field allow-list and bounds (design §8, Security).

Pure. A refusal is that line's result, worded as the OpenAI surface words a bad request.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weir_agent.chunks import asked
from weir_agent.chunks.asked import CHAT, COMPLETIONS

_SAMPLING = frozenset({
    "model", "frequency_penalty", "logit_bias", "max_tokens", "n", "presence_penalty", "seed",
    "stop", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "min_tokens",
    "ignore_eos", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens",
    "spaces_between_special_tokens", "truncate_prompt_tokens", "add_special_tokens", "logprobs",
    "response_format", "structured_outputs", "allowed_token_ids", "bad_words", "length_penalty",
    "return_tokens_as_token_ids", "return_token_ids", "thinking_token_budget",
})  # fmt: skip
_ALLOWED = {
    CHAT: _SAMPLING
    | {
        "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
        "parallel_tool_calls", "reasoning_effort", "include_reasoning", "add_generation_prompt",
        "continue_final_message", "echo", "chat_template_kwargs", "documents",
    },
    COMPLETIONS: _SAMPLING | {"prompt", "echo", "best_of", "suffix"},
}  # fmt: skip
# Ours to set, or without meaning offline: taken out silently, as a server may.
_DROPPED = frozenset({
    "stream", "stream_options", "priority", "cache_salt", "vllm_xargs", "request_id", "session_id",
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "verbosity", "kv_transfer_params", "mm_processor_kwargs",
})  # fmt: skip
_WORDS = ("stop", "bad_words")
_TOKEN_LISTS = ("logit_bias", "allowed_token_ids", "stop_token_ids")
_GRAMMARS = ("response_format", "structured_outputs", "tools", "chat_template_kwargs", "documents")
_AT_LEAST_ONE = frozenset({"n", "best_of", "max_completion_tokens"})
_MEMBERS = 16
_LEAST_INTEGER, _MOST_INTEGER = -(1 << 63), (1 << 63) - 1
_MEDIA_PREFIX = "data:"


class BodyError(Exception):
    """The line asks for something that is not allowed; ``param`` names the field."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param

    def as_body(self) -> dict[str, Any]:
        """The body of a 400 answer."""
        return {
            "error": {
                "message": str(self),
                "type": "BadRequestError",
                "param": self.param,
                "code": 400,
            }
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyBounds:
    """Largest values that a line may ask for."""

    max_choices: int
    max_logprobs: int
    max_output_tokens: int | None
    max_grammar_bytes: int
    max_words: int
    max_list_tokens: int
    max_parts: int
    max_prompt_tokens: int
    result_max_bytes: int


def prepare(
    url: str, body: Mapping[str, Any], *, bounds: BodyBounds, cache_salt: str
) -> dict[str, Any]:
    """The body to run: only allowed fields, stream off, the tenant's cache salt set.

    Raises:
        BodyError: the URL or a field is not allowed, or a value is over its bound.
    """
    allowed = _ALLOWED.get(url)
    if allowed is None:
        raise BodyError(f"url {url!r} is not served: use {CHAT} or {COMPLETIONS}", param="url")
    for name in body:
        if name not in allowed and name not in _DROPPED:
            shown = _readable(name)
            raise BodyError(f"{shown} is not allowed in a batch line: leave it out", param=shown)
    kept = {name: value for name, value in body.items() if name in allowed}
    _check_lists(kept, bounds)
    _check_prompt(kept, bounds)
    _check_parts(kept, bounds)  # before all of them are looked at
    _check_values(kept)
    _check_numbers(kept, bounds)
    _check_choices(kept, bounds)
    _check_logprobs(url, kept, bounds)
    _check_sizes(kept, bounds)
    _refuse_remote_media(kept.get("messages"))
    return {**kept, "stream": False, "cache_salt": cache_salt}


def _check_prompt(body: Mapping[str, Any], bounds: BodyBounds) -> None:
    # A line has room for millions of tokens, and each is looked at where online is served too.
    if body.get("truncate_prompt_tokens") is not None:
        return
    longest = max((len(ids) for ids in asked.prompts(body) if isinstance(ids, list)), default=0)
    if longest > bounds.max_prompt_tokens:
        raise BodyError(
            f"prompt has {longest} tokens: the model takes at most {bounds.max_prompt_tokens}",
            param="prompt",
        )


def _check_parts(body: Mapping[str, Any], bounds: BodyBounds) -> None:
    # Engines hold each against every kind of part, in the loop that serves online requests.
    for name, value in body.items():
        limit = bounds.max_parts
        if name in (*_GRAMMARS, *_WORDS):
            limit = bounds.max_grammar_bytes  # of so many bytes no more can be made
        elif name in _TOKEN_LISTS:
            limit = bounds.max_list_tokens
        if _parts(value, most=limit, tokens=name == "prompt") > limit:
            raise BodyError(
                f"{name} has too many parts, one in another counted too: give at most {limit}",
                param=name,
            )


def _parts(value: object, *, most: int, tokens: bool = False) -> int:
    """Entries of arrays, and objects within objects; counted until there are more than ``most``.

    Members of an object count from where it has more than any message or part. ``tokens``: arrays
    of integers are prompts, which cost next to nothing.
    """
    parts, waiting = 0, [value]
    while waiting and parts <= most:
        part = waiting.pop()
        if isinstance(part, dict):
            values = list(part.values())
            parts += max(0, len(values) - _MEMBERS)
            parts += sum(isinstance(inner, dict) for inner in values)
            waiting += values
        elif isinstance(part, list):
            if tokens and set(map(type, part)) == {int}:
                continue
            entries = [entry for entry in part if not (tokens and type(entry) is int)]
            parts += len(entries)
            waiting += entries
    return parts


def _check_values(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        for part in _leaves(value):
            if isinstance(part, float) and not math.isfinite(part):
                raise BodyError(
                    f"{name} has a number that is too large: it is infinite", param=name
                )
            if isinstance(part, int):
                raise BodyError(
                    f"{name} has a number that is too large: it needs more than 64 bits", param=name
                )
            if isinstance(part, str):
                _check_text(name, part)


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = _readable(text[error.start])
        raise BodyError(
            f"{name} has {half}, one half of a surrogate pair, and is no text: a character "
            "was cut in two where the line was made",
            param=name,
        ) from None


def _leaves(value: object) -> Iterator[str | float]:
    """Texts, fractions, and integers that no engine can be sent."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str | float):
            yield part
        elif isinstance(part, int):
            if not _LEAST_INTEGER <= part <= _MOST_INTEGER:
                yield part
        elif isinstance(part, list):
            if not _are_integers(part):
                waiting.extend(part)
        elif isinstance(part, dict):
            waiting.extend((*part, *part.values()))


def _are_integers(entries: list[Any]) -> bool:
    """Whether all are integers of 64 bits, found out without a step of ours for each."""
    try:
        array("q", entries)
    except (TypeError, OverflowError):
        return False
    return True


def _readable(text: str) -> str:
    """Text that a record can hold, whatever the line said."""
    return text.encode(errors="backslashreplace").decode()


def _check_numbers(body: Mapping[str, Any], bounds: BodyBounds) -> None:
    limits: dict[str, int | None] = {
        "n": bounds.max_choices,
        "best_of": bounds.max_choices,
        "top_logprobs": bounds.max_logprobs,
        "logprobs": bounds.max_logprobs,
        "max_tokens": bounds.max_output_tokens,
        "max_completion_tokens": bounds.max_output_tokens,
        "min_tokens": bounds.max_output_tokens,
    }
    for name, limit in limits.items():
        value = body.get(name)
        if isinstance(value, str) and _reads_as_number(value):  # the engine would take it for one
            raise BodyError(f"{name} is text: give a number", param=name)
        if limit is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue  # what is not a number is the engine's to refuse
        least = _least(name, body)
        if value > limit or value < least:
            raise BodyError(f"{name} is {value}: give {least} to {limit}", param=name)


def _least(name: str, body: Mapping[str, Any]) -> int:
    """The smallest value that the engine takes: a completion may give back its prompt alone."""
    if name in _AT_LEAST_ONE:
        return 1
    return int(name == "max_tokens" and not ("prompt" in body and body.get("echo")))


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_choices(body: Mapping[str, Any], bounds: BodyBounds) -> None:
    choices = len(asked.prompts(body)) * asked.choices_a_prompt(body)
    if choices > bounds.max_choices:
        raise BodyError(
            f"prompts times n is {choices}: give at most {bounds.max_choices} in a line",
            param="prompt",
        )


def _check_logprobs(url: str, body: Mapping[str, Any], bounds: BodyBounds) -> None:
    each = asked.logprobs_a_token(url, body)
    if each and body.get("include_reasoning", True) is not True:  # made for each token all the same
        raise BodyError(
            "logprobs may be no part of an answer without its reasoning: leave logprobs or "
            "include_reasoning out",
            param="logprobs",
        )
    each = asked.logprobs_a_prompt_token(url, body)
    if asked.echoed_bytes(url, body) > bounds.result_max_bytes:
        raise BodyError(
            f"echo gives {each} log probabilities for each token of the prompt, more than a result "
            f"of {bounds.result_max_bytes} bytes holds: leave echo out, give a shorter prompt, or "
            "ask for fewer log probabilities or choices",
            param="echo",
        )


def _check_lists(body: Mapping[str, Any], bounds: BodyBounds) -> None:
    # Engines go through these for each token, or whenever a request joins or leaves.
    for names, limit in ((_WORDS, bounds.max_words), (_TOKEN_LISTS, bounds.max_list_tokens)):
        for name in names:
            value = body.get(name)
            if isinstance(value, list | dict) and len(value) > limit:
                raise BodyError(
                    f"{name} has {len(value)} entries: give at most {limit}", param=name
                )


def _check_sizes(body: Mapping[str, Any], bounds: BodyBounds) -> None:
    for name in (*_GRAMMARS, *_WORDS):
        if body.get(name) is None:
            continue
        size = len(json.dumps(body[name], ensure_ascii=False).encode())
        if size > bounds.max_grammar_bytes:
            raise BodyError(
                f"{name} is {size} bytes: give at most {bounds.max_grammar_bytes}", param=name
            )


def _refuse_remote_media(messages: object) -> None:
    for part in asked.content_parts(messages):
        for name, value in part.items():
            if name.endswith("_url"):
                url = value.get("url") if isinstance(value, dict) else value
                if not (isinstance(url, str) and url.startswith(_MEDIA_PREFIX)):
                    raise BodyError(
                        f"{name} must be inline ({_MEDIA_PREFIX}...): remote media is refused",
                        param="messages",
                    )
            elif name in {"file", "file_id"}:
                raise BodyError("files in messages are refused", param="messages")
