"""The objects of the operator's benchmark: namespaces, LLMServices, and BatchJobs for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

API_VERSION = "weir.dev/v1alpha1"
MODEL = "m"
LINES = 3
MOST_NAMESPACES = 10


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many objects."""

    jobs: int
    services: int

    @property
    def objects(self) -> int:
        """Objects that the operator has to observe."""
        return self.jobs + self.services

    @property
    def namespaces(self) -> int:
        """Namespaces that they are spread over."""
        return min(MOST_NAMESPACES, self.services)


def namespaces(size: Size) -> Iterator[dict[str, Any]]:
    """The namespaces."""
    for number in range(size.namespaces):
        yield {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": f"bench-{number}"},
        }


def objects(size: Size) -> Iterator[dict[str, Any]]:
    """Services first, then their jobs, evenly."""
    for number in range(size.services):
        yield _object(
            "LLMService",
            number % size.namespaces,
            f"chat-{number}",
            {"model": {"uri": "hf://org/model", "servedName": MODEL}},
        )
    for number in range(size.jobs):
        service = number % size.services
        spec = {"serviceRef": {"name": f"chat-{service}"}, "input": {"inline": _lines(number)}}
        yield _object("BatchJob", service % size.namespaces, f"job-{number}", spec)


def _object(kind: str, namespace: int, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"namespace": f"bench-{namespace}", "name": name}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _lines(job: int) -> str:
    lines = []
    for number in range(LINES):
        content = f"document {job}, question {number}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        line = {"custom_id": f"l{number}", "method": "POST", "url": "/v1/chat/completions"}
        lines.append(json.dumps(line | {"body": body | {"max_tokens": 8}}) + "\n")
    return "".join(lines)
