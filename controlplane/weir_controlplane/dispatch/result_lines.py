"""The lines of an uploaded chunk result, checked one by one as they arrive: pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from http import HTTPStatus
from math import isfinite
from typing import Any

from weir_controlplane.dispatch.bounds import MAX_RESULT_LINE_BYTES
from weir_controlplane.dispatch.errors import LineMismatchError
from weir_controlplane.errors import InvalidRequestError, PayloadTooLargeError
from weir_controlplane.store.line_index import line_ranges

_USAGE = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_MAX_TOKENS = 1 << 40


@dataclass(kw_only=True)
class ResultLines:
    """Feeds on the body; knows which lines were in it and what they add up to.

    ``expected`` are the lines of the chunk. Lines must rise and be of the chunk; each is either
    an answer or an error.
    """

    expected: Collection[int]
    lines: list[int] = field(default_factory=list)
    completed_lines: int = 0
    failed_lines: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_USAGE, 0))
    _partial: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the body.

        Raises:
            InvalidRequestError: a line is malformed (``invalid_result``).
            LineMismatchError: a line is not of the chunk, or out of order.
            PayloadTooLargeError: one line is over the bound.
        """
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._extend(end)
            self._take()
        self._extend(rest)

    def end(self) -> None:
        """Takes the end of the body. Raises as `feed`."""
        if self._partial:
            self._take()

    @property
    def ranges(self) -> list[list[int]]:
        """The lines so far, as closed pairs."""
        return line_ranges(self.lines)

    def _extend(self, data: bytes) -> None:
        # In place: a line comes in hundreds of pieces, and a copy of it for each takes seconds.
        self._partial += data
        if len(self._partial) > MAX_RESULT_LINE_BYTES:
            raise PayloadTooLargeError(
                f"a result line is over {MAX_RESULT_LINE_BYTES} bytes; send an error in its place"
            )

    def _take(self) -> None:
        raw, self._partial = self._partial, bytearray()
        try:
            item = json.loads(raw, parse_constant=_refuse_constant, parse_float=_finite)
            line = _integer(item["line"], low=1)
            answer, error = item.get("response"), item.get("error")
            request_id, usage = item["request_id"], item.get("usage")
            failed = _failed(answer, error)
            counted = {name: _integer((usage or {}).get(name, 0), low=0) for name in _USAGE}
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            raise _invalid(len(self.lines) + 1) from None
        if not isinstance(request_id, str):
            raise _invalid(len(self.lines) + 1)
        if self.lines and line <= self.lines[-1]:
            raise LineMismatchError(f"line {line} comes after line {self.lines[-1]}: sort by line")
        if line not in self.expected:
            raise LineMismatchError(f"line {line} is not in this chunk")
        self.lines.append(line)
        self.failed_lines += failed
        self.completed_lines += not failed
        for name, count in counted.items():
            self.tokens[name] += count


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):  # it would be written as Infinity, which is no JSON
        raise ValueError("a number is too large")
    return value


def _failed(answer: Any, error: Any) -> bool:  # noqa: ANN401 - parsed JSON
    if (answer is None) == (error is None):
        raise ValueError("one of response and error")
    if error is not None:
        if not (isinstance(error["code"], str) and isinstance(error["message"], str)):
            raise TypeError("error")
        return True
    if not (isinstance(answer["body"], dict) and isinstance(answer["request_id"], str)):
        raise TypeError("response")
    return _integer(answer["status_code"], low=100) >= HTTPStatus.BAD_REQUEST


def _integer(value: Any, *, low: int) -> int:  # noqa: ANN401 - parsed JSON
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MAX_TOKENS:
        raise ValueError("integer")
    return value


def _invalid(number: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"object {number} of the body is no result line: it needs line, request_id and either "
        "response {status_code, request_id, body} or error {code, message}",
        code="invalid_result",
    )
