"""What `weir batch submit` takes: files, pipes and standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import httpx
import pytest
from typing_extensions import override

from tests.cli.scripted import LINE, Server, batch, no_sleep, ok
from weir_cli import batch as batch_module
from weir_cli.api import Api
from weir_cli.errors import ExitStatus
from weir_cli.main import main


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
