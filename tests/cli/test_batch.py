"""`weir batch` against a scripted control plane: what it sends, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.cli.scripted import Server, batch, no_sleep, ok, refusal
from weir_cli.api import Api
from weir_cli.errors import CliError, ExitStatus, UnavailableError
from weir_cli.main import main
from weir_cli.models import Batch
from weir_cli.settings import ClientSettings
from weir_cli.watch import follow


def test_submit_uploads_creates_and_prints_the_id(
    server: Server, input_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("POST /v1/files", ok({"id": "file-in"}))
    server.on("POST /v1/batches", ok(batch("validating")))
    assert main(["batch", "submit", str(input_file), "--metadata", "team=search"]) == 0
    upload, create = server.asked
    assert input_file.read_bytes() in upload.content
    assert upload.headers["authorization"] == "Bearer weir_secret"
    assert json.loads(create.content) == {
        "input_file_id": "file-in",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        "metadata": {"team": "search"},
    }
    assert capsys.readouterr().out == "batch_1\n"


def test_a_repeated_create_carries_the_same_key(server: Server, input_file: Path) -> None:
    """design.md §8.7: an Idempotency-Key makes a repeat safe."""
    server.on("POST /v1/files", ok({"id": "file-in"}))
    busy = httpx.Response(503, headers={"retry-after": "1"})
    server.on("POST /v1/batches", busy, httpx.ReadError, ok(batch("validating")))
    assert main(["batch", "submit", str(input_file)]) == 0
    keys = {request.headers["idempotency-key"] for request in server.asked[1:]}
    assert len(server.asked) == 4
    assert len(keys) == 1


def test_the_file_of_a_refused_batch_goes_again(
    server: Server, input_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("POST /v1/files", ok({"id": "file-in"}))
    server.on("POST /v1/batches", refusal(400, message="completion_window: give 24h"))
    server.on("DELETE /v1/files/file-in", ok({"deleted": True}))
    assert main(["batch", "submit", str(input_file), "--window", "1s"]) == ExitStatus.REFUSED
    assert server.asked[-1].method == "DELETE"
    server.on("DELETE /v1/files/file-in", refusal(404))
    assert main(["batch", "submit", str(input_file), "--window", "1s"]) == ExitStatus.REFUSED
    assert capsys.readouterr().err.count("error: refused (400): completion_window: give 24h") == 2


def test_the_file_of_a_batch_that_may_have_been_made_stays(
    server: Server, input_file: Path
) -> None:
    server.on("POST /v1/files", ok({"id": "file-in"}))
    server.on("POST /v1/batches", httpx.Response(503))
    assert main(["batch", "submit", str(input_file)]) == ExitStatus.REFUSED
    assert {request.method for request in server.asked} == {"POST"}


def test_submit_wait_follows_to_the_end(
    server: Server, input_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("POST /v1/files", ok({"id": "file-in"}))
    server.on("POST /v1/batches", ok(batch("validating")))
    server.on("GET /v1/batches/batch_1", ok(batch("in_progress")), ok(batch("completed")))
    assert main(["batch", "submit", str(input_file), "--wait"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in said] == [
        "batch_1: validating",
        "batch_1: in_progress",
        "batch_1: completed",
    ]


def test_watching_goes_on_when_the_control_plane_is_back(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    away = [httpx.ConnectError] * 5, [refusal(503, message="the database cannot be reached")] * 5
    server.on("GET /v1/batches/batch_1", ok(batch()), *away[0], *away[1], ok(batch("completed")))
    assert main(["batch", "status", "batch_1", "--watch"]) == 0
    said = capsys.readouterr().err
    assert said.count("no answer from http://weir.test:8080 (broken); it is waited for") == 1
    assert "batch_1: completed" in said


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, text="404 page not found"),
        httpx.Response(403, html="<html>maintenance</html>"),
        httpx.Response(200, html="<html>maintenance</html>"),
        httpx.Response(200, text='{"id": "batch_1", "status": '),
        httpx.Response(302, headers={"location": "https://login.test/"}),
    ],
)
def test_watching_goes_on_after_what_a_proxy_says(server: Server, answer: httpx.Response) -> None:
    """As an ingress answers while the control plane is restarted behind it."""
    server.on("GET /v1/batches/batch_1", ok(batch()), answer, ok(batch("completed")))
    assert main(["batch", "status", "batch_1", "--watch"]) == 0


def test_watching_ends_with_a_refusal(server: Server) -> None:
    revoked = refusal(401, message="the key is revoked")
    server.on("GET /v1/batches/batch_1", ok(batch()), revoked, ok(batch("completed")))
    assert main(["batch", "status", "batch_1", "--watch"]) == ExitStatus.REFUSED


@pytest.mark.parametrize("answer", [{}, {"data": None}, {"data": {"id": "batch_1"}}])
def test_a_list_that_is_none_comes_of_no_control_plane(
    server: Server, capsys: pytest.CaptureFixture[str], answer: object
) -> None:
    server.on("GET /v1/batches", ok(answer))
    assert main(["batch", "status"]) == ExitStatus.REFUSED
    assert "does not answer like a Weir control plane" in capsys.readouterr().err


def test_watching_ends_when_the_control_plane_stays_away(server: Server) -> None:
    server.on("GET /v1/batches/batch_1", httpx.ConnectError)
    transport = httpx.MockTransport(server)
    api = Api(ClientSettings(url="http://weir.test"), transport=transport, sleep=no_sleep)
    passed = iter(range(0, 100_000, 60))
    with pytest.raises(UnavailableError, match="no answer"):
        follow(api, Batch.model_validate(batch()), sleep=no_sleep, clock=lambda: next(passed))
    assert 10 < len(server.asked) < 100


def test_content_errors_are_shown_with_their_line(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"code": "invalid_json_line", "line": 7, "message": "not JSON", "param": None}
    server.on("GET /v1/batches/batch_1", ok(batch("failed", errors={"data": [wrong]})))
    assert main(["batch", "status", "batch_1"]) == 0
    assert "line 7: not JSON (invalid_json_line)" in capsys.readouterr().err


def test_waiting_for_a_batch_that_fails_ends_with_status_1(
    server: Server, input_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("POST /v1/files", ok({"id": "file-in"}))
    server.on("POST /v1/batches", ok(batch("failed", errors={"data": [{"code": "empty_file"}]})))
    assert main(["batch", "submit", str(input_file), "--wait"]) == ExitStatus.FAILED
    assert "remedy: correct what is named above" in capsys.readouterr().err


def test_status_without_an_id_lists(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET /v1/batches", ok({"data": [batch(), batch("completed")]}))
    assert main(["batch", "status"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "batch_1: in_progress, 2 of 3 lines done, 1 with errors",
        "batch_1: completed, 2 of 3 lines done, 1 with errors",
    ]


def test_watching_needs_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    """It listed the newest and ended, as if all that was watched had."""
    assert main(["batch", "status", "--watch"]) == ExitStatus.USAGE
    assert "weir batch status --watch BATCH_ID" in capsys.readouterr().err


def test_status_says_why_a_batch_waits(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET /v1/batches/batch_1", ok(batch(waiting_reason="NoMatchingModel")))
    assert main(["batch", "status", "batch_1"]) == 0
    told = "batch_1: in_progress (NoMatchingModel), 2 of 3 lines done, 1 with errors"
    assert capsys.readouterr().out.splitlines() == [told]


def test_cancel_asks_by_post(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST /v1/batches/batch_1/cancel", ok(batch("cancelling")))
    assert main(["batch", "cancel", "batch_1"]) == 0
    assert "batch_1: cancelling" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["batch", "submit", "none.jsonl"], ExitStatus.USAGE, "none.jsonl: No such file"),
        (
            ["batch", "status", "--url", "weir:80"],
            ExitStatus.USAGE,
            "url: 'weir:80' is not",
        ),
        (["batch", "no-such"], ExitStatus.USAGE, "No such command"),
        (
            ["batch", "status", "b\udcff"],
            ExitStatus.USAGE,
            "argument 3, 'b\\udcff': it is not UTF-8",
        ),
    ],
)
def test_wrong_usage_is_named(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: ExitStatus,
    said: str,
) -> None:
    assert main(arguments) == status
    assert said in capsys.readouterr().err
    assert server.asked == []


def test_metadata_must_be_pairs(server: Server, input_file: Path) -> None:
    arguments = ["batch", "submit", str(input_file), "--metadata", "team"]
    assert main(arguments) == ExitStatus.USAGE
    assert server.asked == []


def test_a_missing_key_is_named(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WEIR_API_KEY")
    assert main(["batch", "status"]) == ExitStatus.USAGE
    assert "WEIR_API_KEY" in capsys.readouterr().err
    assert server.asked == []


def test_whitespace_around_a_key_is_no_part_of_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("GET /v1/batches", ok({"data": []}))
    monkeypatch.setenv("WEIR_API_KEY", "weir_secret\n")
    assert main(["batch", "status"]) == 0
    assert main(["batch", "status", "--api-key", " weir_secret\r\n"]) == 0
    sent = {request.headers["authorization"] for request in server.asked}
    assert sent == {"Bearer weir_secret"}


@pytest.mark.parametrize(
    "key", ["weir_a\nweir_b", "weir_a weir_b", "weir_a\x1b[1mweir_b", "weir_aüweir_b"]
)
def test_a_key_with_other_characters_is_refused_unseen(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    monkeypatch.setenv("WEIR_API_KEY", key)
    assert main(["batch", "status"]) == ExitStatus.USAGE
    said = capsys.readouterr().err
    assert "api_key: has characters that no key has" in said
    assert "weir_a" not in said
    assert "weir_b" not in said
    assert server.asked == []


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (httpx.ConnectError, ExitStatus.UNREACHABLE, "no answer from http://weir.test:8080"),
        (refusal(401), ExitStatus.REFUSED, "remedy: check --api-key or WEIR_API_KEY"),
        (httpx.ConnectTimeout, ExitStatus.UNREACHABLE, "no answer from http://weir.test:8080"),
        (httpx.ReadTimeout, ExitStatus.UNREACHABLE, "no answer from http://weir.test:8080"),
        (refusal(400, param="limit"), ExitStatus.REFUSED, "refused (400): limit: no"),
        (
            refusal(400, param="limit", message="limit: too many"),
            ExitStatus.REFUSED,
            "refused (400): limit: too many",
        ),
        (refusal(503), ExitStatus.REFUSED, "remedy: try again in a minute"),
        (httpx.Response(502, content=b"[" * 100_000), ExitStatus.REFUSED, "refused (502): [["),
        (httpx.Response(200, content=b"[" * 100_000), ExitStatus.REFUSED, "does not answer like"),
        (httpx.Response(500, text="<html>"), ExitStatus.REFUSED, "refused (500): <html>"),
        (ok([]), ExitStatus.REFUSED, "does not answer like a Weir control plane"),
        (ok({"data": [{}]}), ExitStatus.REFUSED, "does not answer like a Weir control plane"),
    ],
)
def test_what_the_server_says_becomes_a_sentence(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    answer: httpx.Response | type[httpx.TransportError],
    status: ExitStatus,
    said: str,
) -> None:
    server.on("GET /v1/batches", answer)
    assert main(["batch", "status"]) == status
    captured = capsys.readouterr().err
    assert said in captured
    assert "Traceback" not in captured


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("DELETE /admin/v1/keys/key_1", ["keys", "revoke", "key_1"]),
        ("POST /v1/batches/batch_1/cancel", ["batch", "cancel", "batch_1"]),
        ("GET /v1/files/file-out/content", ["batch", "results", "batch_1"]),
    ],
)
def test_a_call_that_is_sent_on_has_done_nothing(
    server: Server, capsys: pytest.CaptureFixture[str], call: str, arguments: list[str]
) -> None:
    server.on("GET /v1/batches/batch_1", ok(batch("completed", output_file_id="file-out")))
    server.on(call, httpx.Response(308, headers={"location": "https://weir.test/x"}))
    assert main(arguments) == ExitStatus.REFUSED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "refused (308): http://weir.test:8080 sends this call on to https://weir.test/x" in (
        captured.err
    )
    assert "remedy: give --url or WEIR_URL" in captured.err


@pytest.mark.parametrize("answer", [httpx.Response(200), ok({"status": "ok"})])
@pytest.mark.parametrize("call", ["DELETE /admin/v1/keys/key_1", "POST /v1/files"])
def test_what_does_not_say_what_was_done_has_done_nothing(
    server: Server,
    input_file: Path,
    capsys: pytest.CaptureFixture[str],
    call: str,
    answer: httpx.Response,
) -> None:
    """A key was told to be revoked that goes on, and batches were made of a file `None`."""
    server.on(call, answer)
    is_upload = call.startswith("POST")
    arguments = ["batch", "submit", str(input_file)] if is_upload else ["keys", "revoke", "key_1"]
    assert main(arguments) == ExitStatus.REFUSED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "does not answer like a Weir control plane" in captured.err
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "arguments",
    [["keys", "revoke", ""], ["batch", "status", ""], ["batch", "cancel", " "]],
)
def test_an_empty_id_is_refused_before_anything_is_asked(
    server: Server, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == ExitStatus.USAGE
    assert "the id is empty" in capsys.readouterr().err
    assert server.asked == []


def test_a_defect_shows_no_stack_trace(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_self: Api, _limit: int) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Api, "batches", broken)
    assert main(["batch", "status"]) == ExitStatus.INTERNAL
    assert server.asked == []
    captured = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: oops" in captured
    assert "Traceback" not in captured


def test_an_upload_is_never_repeated(server: Server, input_file: Path) -> None:
    server.on("POST /v1/files", httpx.ReadError)
    assert main(["batch", "submit", str(input_file)]) == ExitStatus.UNREACHABLE
    assert len(server.asked) == 1


def retry_waits(retry_after: bytes) -> list[float]:
    waited: list[float] = []
    answers = [httpx.Response(503, headers=[(b"retry-after", retry_after)]), ok({"data": []})]
    transport = httpx.MockTransport(lambda _request: answers.pop(0))
    api = Api(ClientSettings(url="http://weir.test"), transport=transport, sleep=waited.append)
    assert api.batches(5) == []
    return waited


def test_retries_wait_as_long_as_the_server_asks() -> None:
    assert retry_waits(b"7") == [7.0]


def test_a_wait_that_is_no_number_of_seconds_is_not_the_servers() -> None:
    for value in (b"\xb2", b"soon"):
        (waited_s,) = retry_waits(value)
        assert 0 < waited_s < 7


def test_an_error_names_its_remedy_and_status() -> None:
    error = CliError("broken", remedy="mend it", status=ExitStatus.REFUSED)
    assert (str(error), error.remedy, error.status) == ("broken", "mend it", ExitStatus.REFUSED)
