"""Whether an input file can become a batch: content errors, one pass, constant memory (§8.6).

Only what makes the whole batch meaningless is an error here. What an engine would refuse (too
long, a bad parameter, an unknown role) is that line's own result, later.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from weir_controlplane.batches.line_reader import LineTooLongError, RawLine
from weir_controlplane.batches.prefix_order import PlacedLine, prefix_key
from weir_controlplane.batches.prompt import read_prompt
from weir_controlplane.store.line_index import hash_of

MAX_LISTED_ERRORS = 100
MAX_CUSTOM_ID_CHARS = 512
MAX_NAMED_MODELS = 10
# Possessive: what could be tried again would be remembered for each byte of a string. A string
# may lack its end: to look for it from each later quote would take quadratic time.
_STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]')


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentError:
    """A reason to refuse the batch; ``line`` None: the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def view(self) -> dict[str, Any]:
        """As listed in the batch's ``errors.data``."""
        return {
            "code": self.code,
            "line": self.line,
            "message": self.message,
            "param": self.param,
        }


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the lines of one batch must obey."""

    endpoint: str
    models: frozenset[str]
    max_lines: int
    max_json_depth: int
    default_output_tokens: int


@dataclass(kw_only=True)
class Findings:
    """What one pass found. ``errors`` empty: the batch can run."""

    lines: list[PlacedLine] = field(default_factory=list)
    model: str | None = None
    errors: list[ContentError] = field(default_factory=list)
    tokens: int = 0


class _RefusedError(Exception):
    """A line is refused; carries why."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def validate(lines: Iterable[RawLine], rules: Rules) -> Findings:
    """Checks every line; stops after the first 100 errors.

    The trailing blank lines of a file are not lines of the batch.
    """
    check = _Check(rules)
    try:
        for raw in _without_trailing_blanks(lines):
            if not check.take(raw):
                break
    except LineTooLongError as error:
        message = f"longer than {error.bound_bytes} bytes"
        check.refuse(error.line, "invalid_json_line", message, None)
    if not check.findings.lines and not check.findings.errors:
        check.refuse(None, "empty_file", "the file has no lines", None)
    return check.findings


def check_depth(content: bytes, bound: int) -> bool:
    """Whether JSON text nests at most ``bound`` deep; found without building anything."""
    if content.count(b"{") + content.count(b"[") <= bound:
        return True
    depth = 0
    for match in _STRUCTURE.finditer(content):
        first = match.group()[:1]
        if first in b"[{":
            depth += 1
            if depth > bound:
                return False
        elif first in b"]}":
            depth -= 1
    return True


class _Check:
    def __init__(self, rules: Rules) -> None:
        self.findings = Findings()
        self._rules = rules
        self._seen: dict[bytes, int] = {}

    def take(self, raw: RawLine) -> bool:
        """Checks one line; False when there is no use in going on."""
        if raw.line > self._rules.max_lines:
            message = f"the file has more than {self._rules.max_lines} lines; split it"
            self.refuse(raw.line, "too_many_lines", message, None)
            return False
        try:
            self._place(raw, self._parse(raw))
        except _RefusedError as error:
            self.refuse(raw.line, error.code, str(error), error.param)
        return len(self.findings.errors) < MAX_LISTED_ERRORS

    def refuse(self, line: int | None, code: str, message: str, param: str | None) -> None:
        self.findings.errors.append(
            ContentError(code=code, line=line, message=message, param=param)
        )
        self.findings.lines.clear()  # nothing will run: give the memory back

    def _parse(self, raw: RawLine) -> dict[str, Any]:
        if not check_depth(raw.content, self._rules.max_json_depth):
            bound = self._rules.max_json_depth
            raise _RefusedError("invalid_json_line", f"nested deeper than {bound}")
        try:
            value = _DECODER.decode(raw.content.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise _RefusedError("invalid_json_line", f"not JSON: {_why(error, raw)}") from None
        if not isinstance(value, dict):
            raise _RefusedError("invalid_json_line", "not a JSON object")
        return value

    def _place(self, raw: RawLine, value: dict[str, Any]) -> None:
        self._check_custom_id(raw.line, value.get("custom_id"))
        if value.get("method") != "POST":
            raise _RefusedError("invalid_json_line", "method: must be POST", "method")
        if value.get("url") != self._rules.endpoint:
            message = f"url: must be {self._rules.endpoint}, the endpoint of the batch"
            raise _RefusedError("url_mismatch", message, "url")
        body = value.get("body")
        if not isinstance(body, dict):
            raise _RefusedError("invalid_json_line", "body: must be a JSON object", "body")
        self._check_model(body.get("model"))
        prompt = read_prompt(body, default_output_tokens=self._rules.default_output_tokens)
        self.findings.tokens += prompt.prompt_tokens + prompt.output_tokens
        if self.findings.errors:
            return
        self.findings.lines.append(
            PlacedLine(
                line=raw.line,
                offset_bytes=raw.offset_bytes,
                length_bytes=len(raw.content),
                prompt_tokens=prompt.prompt_tokens,
                output_tokens=prompt.output_tokens,
                key=prefix_key(prompt.text),
                digest=hash_of(raw.content),
            )
        )

    def _check_custom_id(self, line: int, custom_id: object) -> None:
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
            message = f"custom_id: must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters"
            raise _RefusedError("invalid_json_line", message, "custom_id")
        encoded = custom_id.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(encoded, digest_size=16).digest()
        first = self._seen.setdefault(digest, line)
        if first != line:
            message = f"custom_id: the same as in line {first}"
            raise _RefusedError("duplicate_custom_id", message, "custom_id")

    def _check_model(self, model: object) -> None:
        if not isinstance(model, str) or not model:
            raise _RefusedError("model_mismatch", "body.model: must name a model", "body.model")
        if self.findings.model is None:
            if model not in self._rules.models:
                message = f"body.model: no service serves {model[:100]!r}; {self._served()}"
                raise _RefusedError("model_mismatch", message, "body.model")
            self.findings.model = model
        elif model != self.findings.model:
            message = f"body.model: must be {self.findings.model!r}, as in the lines before"
            raise _RefusedError("model_mismatch", message, "body.model")

    def _served(self) -> str:
        names = sorted(self._rules.models)
        if not names:
            return "none is served to this tenant so far"
        more = ", …" if len(names) > MAX_NAMED_MODELS else ""
        return f"served: {', '.join(map(repr, names[:MAX_NAMED_MODELS]))}{more}"


def _why(error: Exception, raw: RawLine) -> str:
    if not raw.content.strip():
        return "the line is empty"
    if raw.content.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it begins with a byte order mark; save the file as UTF-8 without one"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} of the line is not UTF-8"
    if isinstance(error, json.JSONDecodeError):  # its own words count the line from 1 again
        return f"{error.msg.removesuffix(' at')} at character {error.pos + 1} of the line"
    return str(error).partition(":")[0]  # what follows is advice to programmers


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _without_trailing_blanks(lines: Iterable[RawLine]) -> Iterator[RawLine]:
    blanks: list[RawLine] = []
    for raw in lines:
        if not raw.content.strip():
            if len(blanks) < MAX_LISTED_ERRORS:  # no more would be listed, nor what is in them
                blanks.append(replace(raw, content=b""))
            continue
        yield from blanks
        blanks.clear()
        yield raw
