"""The commands' client: what its repeats say of themselves."""

from __future__ import annotations

import httpx

from weir_cli.api import ATTEMPTS, Api
from weir_cli.settings import ClientSettings

CANCELLED = {
    "id": "batch_1",
    "status": "cancelled",
    "endpoint": "/v1/completions",
    "created_at": 1_700_000_000,
    "input_file_id": "file-in",
}


def no_sleep(_seconds: float) -> None:
    """Time does not pass."""


def test_repeats_say_how_often_the_call_was_sent_before() -> None:
    """The control plane would refuse to cancel a batch that the first of them has cancelled."""
    counts: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        counts.append(request.headers.get("x-stainless-retry-count"))
        if len(counts) < ATTEMPTS:
            raise httpx.ReadError("broken")
        return httpx.Response(200, json=CANCELLED)

    transport = httpx.MockTransport(answer)
    api = Api(ClientSettings(url="http://weir.test"), transport=transport, sleep=no_sleep)
    assert api.cancel("batch_1").status == "cancelled"
    assert counts == [None, *(str(number) for number in range(1, ATTEMPTS))]


def test_a_repeat_keeps_the_headers_of_its_call() -> None:
    asked: list[httpx.Headers] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers)
        return httpx.Response(503) if len(asked) == 1 else httpx.Response(200, json=CANCELLED)

    transport = httpx.MockTransport(answer)
    api = Api(ClientSettings(url="http://weir.test"), transport=transport, sleep=no_sleep)
    api.create_batch("file-in", "/v1/completions", "24h", {})
    first, second = asked
    assert first["idempotency-key"] == second["idempotency-key"]
    assert (first.get("x-stainless-retry-count"), second["x-stainless-retry-count"]) == (None, "1")
