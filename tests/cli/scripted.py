"""A control plane that answers as it is told, for tests of the command line."""

from __future__ import annotations

import httpx

from weir_cli.api import FILE_CONTENT

LINE = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}}


def batch(status: str = "in_progress", **fields: object) -> dict[str, object]:
    return {
        "id": "batch_1",
        "object": "batch",
        "status": status,
        "endpoint": "/v1/completions",
        "created_at": 1_700_000_000,
        "input_file_id": "file-in",
        "request_counts": {"total": 3, "completed": 2, "failed": 1},
        **fields,
    }


def no_sleep(_seconds: float) -> None:
    """Time does not pass."""


class Server:
    """Answers by method and path; keeps what it was asked. A list of answers is used up in turn."""

    def __init__(self) -> None:
        self.answers: dict[str, list[httpx.Response | type[httpx.TransportError]]] = {}
        self.asked: list[httpx.Request] = []

    def on(self, call: str, *answers: httpx.Response | type[httpx.TransportError]) -> None:
        self.answers[call] = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.asked.append(request)
        answers = self.answers[f"{request.method} {request.url.path}"]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, type):
            raise answer("broken")
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def ok(body: object) -> httpx.Response:
    return httpx.Response(200, json=body)


def content(of_a_file: bytes) -> httpx.Response:
    return httpx.Response(200, content=of_a_file, headers={"content-type": FILE_CONTENT})


def refusal(status: int, **error: object) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", "param": None, **error}})
