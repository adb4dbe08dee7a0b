"""`weir batch` against a scripted control plane: what it sends, prints and returns."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import httpx
import pytest
from typing_extensions import override

from weir_cli import batch as batch_module
from weir_cli.api import FILE_CONTENT, Api
from weir_cli.errors import CliError, ExitStatus, UnavailableError
from weir_cli.main import main
from weir_cli.models import Batch
from weir_cli.settings import ClientSettings
from weir_cli.watch import follow

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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    scripted = Server()
    transport = httpx.MockTransport(scripted)
    monkeypatch.setattr(batch_module, "Api", partial(Api, transport=transport, sleep=no_sleep))
    monkeypatch.setattr(batch_module, "follow", partial(follow, sleep=no_sleep))
    monkeypatch.setenv("WEIR_URL", "http://weir.test:8080/v1/")
    monkeypatch.setenv("WEIR_API_KEY", "weir_secret")
    return scripted


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    return path


def ok(body: object) -> httpx.Response:
    return httpx.Response(200, json=body)


def content(of_a_file: bytes) -> httpx.Response:
    return httpx.Response(200, content=of_a_file, headers={"content-type": FILE_CONTENT})


def refusal(status: int, **error: object) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", "param": None, **error}})


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


def test_results_write_both_files_whole(server: Server, tmp_path: Path) -> None:
    files = {"output_file_id": "file-out", "error_file_id": "file-err"}
    server.on("GET /v1/batches/batch_1", ok(batch("completed", **files)))
    server.on("GET /v1/files/file-out/content", content(b"out\n"))
    server.on("GET /v1/files/file-err/content", content(b"err\n"))
    out, err = tmp_path / "out.jsonl", tmp_path / "err.jsonl"
    assert main(["batch", "results", "batch_1", "-o", str(out), "--errors", str(err)]) == 0
    assert (out.read_bytes(), err.read_bytes()) == (b"out\n", b"err\n")
    assert sorted(tmp_path.iterdir()) == [err, out]


@pytest.fixture
def results_of(server: Server) -> Callable[[Path], int]:
    """`weir batch results -o`, of a batch whose output is ``out``."""
    server.on("GET /v1/batches/batch_1", ok(batch("completed", output_file_id="file-out")))
    server.on("GET /v1/files/file-out/content", content(b"out\n"))
    return lambda target: main(["batch", "results", "batch_1", "-o", str(target)])


def test_results_go_into_a_pipe_that_stays_one(
    results_of: Callable[[Path], int], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert results_of(pipe) == 0
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert os.read(reader, 100) == b"out\n"
    finally:
        os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]


def test_results_have_the_mode_of_other_new_files_or_keep_theirs(
    results_of: Callable[[Path], int], tmp_path: Path
) -> None:
    other, new, private = (tmp_path / name for name in ("other", "new", "private"))
    other.touch()
    private.touch(mode=0o600)
    assert (results_of(new), results_of(private)) == (0, 0)
    assert stat.S_IMODE(new.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert new.read_bytes() == private.read_bytes() == b"out\n"


def test_results_go_where_a_link_leads(results_of: Callable[[Path], int], tmp_path: Path) -> None:
    """Of /dev/stdout too, which is one."""
    link, real = tmp_path / "link", tmp_path / "real"
    real.write_bytes(b"old\n")
    link.symlink_to(real)
    assert results_of(link) == 0
    assert link.is_symlink()
    assert real.read_bytes() == b"out\n"


def test_results_that_cannot_be_had_leave_no_file(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET /v1/batches/batch_1", ok(batch("completed", output_file_id="file-out")))
    server.on("GET /v1/files/file-out/content", refusal(404, message="no such file"))
    arguments = ["batch", "results", "batch_1", "-o", str(tmp_path / "out.jsonl")]
    assert main(arguments) == ExitStatus.REFUSED
    assert list(tmp_path.iterdir()) == []
    assert "error: refused (404): no such file" in capsys.readouterr().err


@pytest.mark.parametrize("target", [("-o", "out.jsonl"), ()])
def test_a_page_of_a_proxy_is_no_results(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: tuple[str, ...],
) -> None:
    """It was written in their place, and the command ended as if all was done."""
    monkeypatch.chdir(tmp_path)
    server.on("GET /v1/batches/batch_1", ok(batch("completed", output_file_id="file-out")))
    server.on("GET /v1/files/file-out/content", httpx.Response(200, html="<html>Sign in</html>"))
    assert main(["batch", "results", "batch_1", *target]) == ExitStatus.REFUSED
    assert list(tmp_path.iterdir()) == []
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "http://weir.test:8080 does not answer like a Weir control plane" in captured.err


def test_results_go_to_stdout_and_say_that_lines_failed(
    server: Server, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = {"output_file_id": "file-out", "error_file_id": "file-err"}
    server.on("GET /v1/batches/batch_1", ok(batch("completed", **files)))
    server.on("GET /v1/files/file-out/content", content(b"out\n"))
    assert main(["batch", "results", "batch_1"]) == 0
    captured = capfdbinary.readouterr()
    assert captured.out == b"out\n"
    assert b"1 lines have errors" in captured.err


@pytest.mark.parametrize("status", ["failed", "expired", "cancelled"])
@pytest.mark.parametrize("file", ["output_file_id", "error_file_id"])
def test_results_of_a_batch_that_did_not_complete_are_fetched_and_tell_so(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str, file: str
) -> None:
    server.on("GET /v1/batches/batch_1", ok(batch(status, **{file: "file-1"})))
    server.on("GET /v1/files/file-1/content", content(b"some\n"))
    flag = "-o" if file == "output_file_id" else "--errors"
    path = tmp_path / "fetched.jsonl"
    assert main(["batch", "results", "batch_1", flag, str(path)]) == ExitStatus.FAILED
    assert path.read_bytes() == b"some\n"
    assert f"batch_1 ended as {status}" in capsys.readouterr().err


def test_results_of_a_running_batch_say_how_to_wait(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("GET /v1/batches/batch_1", ok(batch()))
    assert main(["batch", "results", "batch_1"]) == ExitStatus.FAILED
    assert "weir batch status --watch batch_1" in capsys.readouterr().err


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


@pytest.mark.parametrize("endpoint", [[], ["--endpoint", "/v1/completions"]])
def test_a_file_that_cannot_be_read_is_named(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], endpoint: list[str]
) -> None:
    for name, said in ((tmp_path / "none.jsonl", "No such file"), (tmp_path, "Is a directory")):
        assert main(["batch", "submit", str(name), *endpoint]) == ExitStatus.USAGE
        assert f"{name}: {said}" in "".join(capsys.readouterr().err.splitlines())
    assert server.asked == []


def test_the_first_line_may_be_as_long_as_any(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"body": {"prompt": "x" * (3 << 20)}, "url": LINE["url"]}) + "\n")
    server.on("POST /v1/files", ok({"id": "file-in"}))
    server.on("POST /v1/batches", ok(batch("validating")))
    assert main(["batch", "submit", str(path)]) == 0
    upload, create = server.asked
    assert path.read_bytes() in upload.content
    assert json.loads(create.content)["endpoint"] == "/v1/completions"


LINES = b"".join(json.dumps({**LINE, "custom_id": str(i)}).encode() + b"\n" for i in range(9000))


@contextmanager
def pipe_with(path: Path, content: bytes) -> Iterator[Path]:
    """A pipe into which somebody writes."""
    os.mkfifo(path)
    writer = Thread(target=path.write_bytes, args=(content,))
    writer.start()
    yield path
    writer.join()


@pytest.fixture
def accepting(server: Server) -> Server:
    server.on("POST /v1/files", ok({"id": "file-in"}))
    server.on("POST /v1/batches", ok(batch("validating")))
    return server


def test_standard_input_is_submitted_whole(
    accepting: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipe_with(tmp_path / "pipe", LINES) as pipe, pipe.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["batch", "submit", "-"]) == 0
    upload, create = accepting.asked
    assert LINES in upload.content
    assert int(upload.headers["content-length"]) == len(upload.content)
    assert b'filename="stdin.jsonl"' in upload.content
    assert json.loads(create.content)["endpoint"] == "/v1/completions"


@pytest.mark.parametrize("more_bytes", [-1000, 1000])
def test_a_file_that_changes_while_it_is_uploaded_is_not_submitted(
    input_file: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more_bytes: int,
) -> None:
    """Half of its last line would be."""
    input_file.write_bytes(LINES)
    server.on("POST /v1/files", ok({"id": "file-in"}))

    class Changes(httpx.BaseTransport):
        @override
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            os.truncate(input_file, len(LINES) + more_bytes)
            request.read()
            return server(request)

    monkeypatch.setattr(batch_module, "Api", partial(Api, transport=Changes(), sleep=no_sleep))
    assert main(["batch", "submit", str(input_file)]) == ExitStatus.FAILED
    assert server.asked == []
    said = " ".join(capsys.readouterr().err.split())
    assert "in.jsonl changed while it was read" in said
    assert "submit it again when it is complete" in said


def test_a_file_whose_name_is_not_utf8_is_submitted(accepting: Server, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    path.write_bytes(LINES)
    assert main(["batch", "submit", str(path)]) == 0
    upload, _ = accepting.asked
    assert 'filename="caf\ufffd.jsonl"'.encode() in upload.content


def test_what_a_shell_has_read_of_standard_input_is_not_submitted_again(
    accepting: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a heading\n" + LINES)
    with path.open() as stdin:
        os.lseek(stdin.fileno(), len(b"a heading\n"), os.SEEK_SET)
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["batch", "submit", "-"]) == 0
    upload, _ = accepting.asked
    assert LINES in upload.content
    assert b"a heading" not in upload.content


def test_a_named_pipe_is_submitted_whole(accepting: Server, tmp_path: Path) -> None:
    with pipe_with(tmp_path / "pipe", LINES) as pipe:
        assert main(["batch", "submit", str(pipe)]) == 0
    assert LINES in accepting.asked[0].content


def test_standard_input_with_nothing_in_it_is_named(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pipe_with(tmp_path / "pipe", b"") as pipe, pipe.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["batch", "submit", "-"]) == ExitStatus.USAGE
    assert "-: it is empty" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["batch", "submit", "-"]) == ExitStatus.USAGE
    assert "standard input is closed" in capsys.readouterr().err
    assert server.asked == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}\n", "line 1: no `url` in it"),
        ("", "in.jsonl: it is empty"),
        ("[" * 100_000, "line 1: no `url` in it"),
        ('{"url": "\\ud800"}\n', "line 1: no `url` in it"),
    ],
)
def test_a_file_without_url_is_named(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(content)
    assert main(["batch", "submit", str(path)]) == ExitStatus.USAGE
    assert said in "".join(capsys.readouterr().err.splitlines())
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


def test_retries_wait_as_long_as_the_server_asks() -> None:
    waited: list[float] = []
    answers = [httpx.Response(503, headers={"retry-after": "7"}), ok({"data": []})]
    transport = httpx.MockTransport(lambda _request: answers.pop(0))
    api = Api(ClientSettings(url="http://weir.test"), transport=transport, sleep=waited.append)
    assert api.batches(5) == []
    assert waited == [7.0]


def test_an_error_names_its_remedy_and_status() -> None:
    error = CliError("broken", remedy="mend it", status=ExitStatus.REFUSED)
    assert (str(error), error.remedy, error.status) == ("broken", "mend it", ExitStatus.REFUSED)
