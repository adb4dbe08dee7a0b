"""The commands' client: what its repeats say of themselves."""

from __future__ import annotations

import ssl

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


@pytest.mark.parametrize(
    "url",
    [
        "http://user:sesame@weir.test",
        "http://sesame@weir.test",
        "http://weir.test/?key=sesame",
        "http://weir.test/#sesame",
    ],
)
def test_a_url_with_more_than_an_address_is_refused_and_not_shown(url: str) -> None:
    """A user in it took the place of the key: `no API key`, said the control plane."""
    with pytest.raises(CliError, match="url: has a user") as caught:
        client_settings(url, "key")
    assert caught.value.status == ExitStatus.USAGE
    assert "sesame" not in f"{caught.value.message} {caught.value.remedy}"


def remedy(transport: httpx.BaseTransport, url: str) -> str:
    """What a call to a control plane that does not answer ends with."""
    api = Api(ClientSettings(url=url), transport=transport, sleep=no_sleep)
    with pytest.raises(UnavailableError) as caught:
        api.batch("batch_1")
    return str(caught.value.remedy)


def failing(error: httpx.TransportError, cause: Exception | None = None) -> httpx.BaseTransport:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise error from cause

    return httpx.MockTransport(answer)


def test_a_certificate_that_nobody_vouches_for_names_the_setting() -> None:
    """It was told to look whether the control plane runs."""
    unverified = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed")
    said = remedy(failing(httpx.ConnectError("self-signed"), unverified), "https://weir.test")
    assert "SSL_CERT_FILE" in said
    other = ssl.SSLError(1, "wrong version number")
    assert "http" in remedy(failing(httpx.ConnectError("wrong"), other), "https://weir.test")


def test_a_connection_that_broke_is_to_be_tried_again() -> None:
    assert "try again" in remedy(failing(httpx.ReadError("reset")), "http://weir.test")
    assert "try again" not in remedy(failing(httpx.ConnectError("refused")), "http://weir.test")


@pytest.mark.parametrize(
    ("url", "is_named"),
    [("http://weir.test", True), ("http://weir.local:8080", False), ("https://weir.test", False)],
)
def test_a_proxy_on_the_way_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, *, is_named: bool
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ALL_PROXY", "HTTPS_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://user:sesame@proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", "weir.local")
    said = remedy(failing(httpx.ConnectError("refused")), url)
    assert ("NO_PROXY" in said) is is_named
    assert "sesame" not in said


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_proxys_own_answer_is_not_taken_for_the_control_planes(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """It was told to make a key of another scope, to check the id, or to wait."""
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:3128")
    page = httpx.MockTransport(lambda _: httpx.Response(status, html="<html>denied</html>"))
    said = remedy(page, "http://weir.test")
    assert "not the control plane" in said
    assert "NO_PROXY" in said


def test_an_answer_that_cannot_be_unpacked_is_none() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise httpx.DecodingError("incorrect header check")

    transport = httpx.MockTransport(answer)
    api = Api(ClientSettings(url="http://weir.test"), transport=transport, sleep=no_sleep)
    with pytest.raises(UnavailableError, match="incorrect header check"):
        api.batch("batch_1")
