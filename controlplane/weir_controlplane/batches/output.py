"""Output and error lines of a batch, and the files that they make up. Runs in a thread.

``custom_id`` comes from the input file, never from an agent (§8.2).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from weir_controlplane.batches.line_reader import RawLine
from weir_controlplane.batches.result_reader import BrokenResultError
from weir_controlplane.batches.states import Status
from weir_controlplane.errors import MissingObjectError
from weir_controlplane.files.storage import Storage
from weir_controlplane.files.storage_writer import StorageWriter

NEVER_RUN = {
    Status.EXPIRED: {
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    },
    Status.CANCELLED: {
        "code": "batch_cancelled",
        "message": "This request was not executed because the batch was cancelled.",
    },
}


class UnwantedError(Exception):
    """The files are not wanted any more: the lease is lost, or the process stops."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Everything that the output is made from. ``suspects``: errors of poisonous lines, by line."""

    batch_id: str
    closing_as: Status
    total_lines: int
    input_lines: Iterable[RawLine]
    results: Iterator[tuple[int, dict[str, Any]]]
    suspects: Mapping[int, dict[str, Any]]


@dataclass(kw_only=True)
class Totals:
    """Sums over the lines written. A size of 0 means that there is no such file."""

    completed_lines: int = 0
    failed_lines: int = 0
    usage: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"), 0
        )
    )
    output_bytes: int = 0
    error_bytes: int = 0


def output_lines(sources: Sources, totals: Totals) -> Iterator[tuple[bool, bytes]]:
    """Each input line's one line of output, and whether it succeeded; adds up ``totals``.

    Raises:
        BrokenResultError: a line of a completed batch has no result, or a result has no line.
    """
    due = next(sources.results, None)
    for raw in sources.input_lines:
        if raw.line > sources.total_lines:
            continue  # blank lines; read to the end, where the reader knows the file from another
        result = None
        if due is not None and due[0] == raw.line:
            result, due = due[1], next(sources.results, None)
        if result is None:
            error = sources.suspects.get(raw.line) or NEVER_RUN.get(sources.closing_as)
            if error is None:
                raise BrokenResultError(f"line {raw.line} of {sources.batch_id} has no result")
            result = {"response": None, "error": error}
        succeeded = _succeeded(result)
        totals.completed_lines += succeeded
        totals.failed_lines += not succeeded
        for name, tokens in (result.get("usage") or {}).items():
            if name in totals.usage:
                totals.usage[name] += int(tokens or 0)
        yield succeeded, _line(sources.batch_id, raw, result)
    if due is not None:
        raise BrokenResultError(f"there is a result for line {due[0]} of {sources.batch_id}")


def write_outputs(
    storage: Storage,
    sources: Sources,
    *,
    output_key: str,
    error_key: str,
    wanted: Callable[[], bool],
) -> Totals:
    """Writes both files, neither of them empty. Nothing is left behind when this raises.

    Raises:
        UnwantedError: ``wanted`` said no; asked after every line.
        MissingObjectError: the input is another than was stored.
    """
    totals = Totals()
    with contextlib.ExitStack() as files:
        writers: dict[bool, StorageWriter] = {}
        for succeeded, line in output_lines(sources, totals):
            if succeeded not in writers:
                key = output_key if succeeded else error_key
                files.callback(wanted)  # between the two that appear in the end: it takes its time
                writers[succeeded] = files.enter_context(storage.blocking_writer(key))
            writers[succeeded].append(line)
            if not wanted():
                raise UnwantedError
        totals.output_bytes = writers[True].bytes if True in writers else 0
        totals.error_bytes = writers[False].bytes if False in writers else 0
    return totals


def _succeeded(result: Mapping[str, Any]) -> bool:
    response = result.get("response")
    return (
        result.get("error") is None
        and response is not None
        and int(response["status_code"]) < HTTPStatus.BAD_REQUEST
    )


def _custom_id(raw: RawLine) -> str:
    """What was checked when the batch began; the file's hash is known after its last line only.

    Raises:
        MissingObjectError: the line is another than was stored.
    """
    try:
        return str(json.loads(raw.content)["custom_id"])
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise MissingObjectError(f"line {raw.line} of the input file was altered") from error


def _line(batch_id: str, raw: RawLine, result: Mapping[str, Any]) -> bytes:
    request_id = hashlib.sha256(f"{batch_id}:{raw.line}".encode()).hexdigest()[:24]
    response, error = result.get("response"), result.get("error")
    view = {
        "id": f"batch_req_{request_id}",
        "custom_id": _custom_id(raw),
        "response": None
        if response is None
        else {
            "status_code": response["status_code"],
            "request_id": response.get("request_id") or f"req_{request_id}",
            "body": response["body"],
        },
        "error": None
        if error is None
        else {"code": error.get("code"), "message": error.get("message")},
    }
    return json.dumps(view, separators=(",", ":")).encode() + b"\n"
