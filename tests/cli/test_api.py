"""The commands' client: what its repeats say of themselves."""

from __future__ import annotations

import httpx
import pytest

from weir_cli.api import ATTEMPTS, Api
from weir_cli.errors import CliError, ExitStatus, UnavailableError
from weir_cli.settings import ClientSettings, client_settings

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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://proxy:1080"),  # needs a package that is not there
        ("HTTP_PROXY", "somehow://proxy"),
        ("HTTPS_PROXY", "http://user:secret/word@proxy"),
        ("NO_PROXY", "[::1"),
        ("SSL_CERT_FILE", "/nowhere.pem"),
        ("SSL_CERT_FILE", __file__),
    ],
)
def test_an_environment_that_no_client_can_use_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Every command of the client ended as a defect in weir."""
    monkeypatch.setenv(name, value)
    # Not the context that all tests share.
    monkeypatch.setattr("httpx._transports.default.create_ssl_context", httpx.create_ssl_context)
    with pytest.raises(CliError, match=r"cannot call http://weir\.test") as caught:
        Api(ClientSettings(url="http://weir.test"))
    assert caught.value.status == ExitStatus.USAGE
    assert name in str(caught.value.remedy)
    assert "secret" not in caught.value.message


def test_a_url_from_a_file_ends_with_its_newline() -> None:
    assert client_settings(" http://weir.test\n", "key").url == "http://weir.test"


def test_an_answer_that_cannot_be_unpacked_is_none() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise httpx.DecodingError("incorrect header check")

    transport = httpx.MockTransport(answer)
    api = Api(ClientSettings(url="http://weir.test"), transport=transport, sleep=no_sleep)
    with pytest.raises(UnavailableError, match="incorrect header check"):
        api.batch("batch_1")
