"""Batches for whole-process tests: input lines, the stock client's calls, and a strict reading."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from openai import APIConnectionError, APIStatusError, OpenAI
from openai.types import Batch

from tests.support.stack import MODEL

TERMINAL = ("completed", "failed", "expired", "cancelled")
ENDPOINT = "/v1/completions"
Line = dict[str, Any]


def line(custom_id: str, *, url: str = ENDPOINT, **body: object) -> Line:
    """One input line; the body's defaults make a short greedy completion."""
    defaults: Line = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    if url == ENDPOINT:
        defaults["prompt"] = f"question {custom_id}"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**defaults, **body}}


def shared_document_lines(
    count: int, *, documents: int, document_tokens: int, max_tokens: int = 8
) -> list[Line]:
    """``count`` questions, in turn over ``documents`` documents; one character is one token."""
    texts = [
        (f"document {n}: " + "abcdefghij " * document_tokens)[:document_tokens]
        for n in range(documents)
    ]
    return [
        line(f"line-{n}", prompt=f"{texts[n % documents]} question {n}", max_tokens=max_tokens)
        for n in range(count)
    ]


def as_jsonl(lines: Iterable[Line]) -> bytes:
    """The input file."""
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


def submit(client: OpenAI, content: bytes, *, endpoint: str = ENDPOINT) -> Batch:
    """Upload and create, as any user would."""
    file = client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
    )


def finished(client: OpenAI, batch_id: str, *, within_s: float = 400) -> Batch:
    """The batch in its final state; outages of the control plane are waited out.

    Raises:
        TimeoutError: it does not end.
    """
    deadline_s = time.monotonic() + within_s
    last: Batch | None = None
    while time.monotonic() < deadline_s:
        try:
            last = client.batches.retrieve(batch_id)
        except (APIConnectionError, APIStatusError):
            time.sleep(0.5)
            continue
        if last.status in TERMINAL:
            return last
        time.sleep(0.2)
    raise TimeoutError(f"{batch_id} has not ended: {last}")


@dataclass(kw_only=True)
class Results:
    """Every line of both output files by its custom_id, in file order."""

    output: list[Line] = field(default_factory=list)
    errors: list[Line] = field(default_factory=list)

    @property
    def custom_ids(self) -> list[str]:
        """Of all lines; a line that is there twice is listed twice."""
        return [str(item["custom_id"]) for item in (*self.output, *self.errors)]

    def error(self, custom_id: str) -> Line:
        """One line of the error file."""
        return next(item for item in self.errors if item["custom_id"] == custom_id)


def results(client: OpenAI, batch: Batch) -> Results:
    """Downloads both files."""

    def read(file_id: str | None) -> list[Line]:
        if file_id is None:
            return []
        return [json.loads(row) for row in client.files.content(file_id).content.splitlines()]

    return Results(output=read(batch.output_file_id), errors=read(batch.error_file_id))


def assert_each_line_once(found: Results, lines: Iterable[Line]) -> None:
    """Nothing lost, nothing doubled."""
    expected = sorted(str(item["custom_id"]) for item in lines)
    assert sorted(found.custom_ids) == expected
