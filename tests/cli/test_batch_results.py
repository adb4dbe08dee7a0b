"""`weir batch results`: whole files, or none."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.scripted import Server, batch, content, ok, refusal
from weir_cli.errors import ExitStatus
from weir_cli.main import main


def test_results_write_both_files_whole(server: Server, tmp_path: Path) -> None:
    files = {"output_file_id": "file-out", "error_file_id": "file-err"}
    server.on("GET /v1/batches/batch_1", ok(batch("completed", **files)))
    server.on("GET /v1/files/file-out/content", content(b"out\n"))
    server.on("GET /v1/files/file-err/content", content(b"err\n"))
    out, err = tmp_path / "out.jsonl", tmp_path / "err.jsonl"
    assert main(["batch", "results", "batch_1", "-o", str(out), "--errors", str(err)]) == 0
    assert (out.read_bytes(), err.read_bytes()) == (b"out\n", b"err\n")
    assert sorted(tmp_path.iterdir()) == [err, out]


def test_lines_with_errors_do_not_replace_the_results(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last file written was all that was left, and the command ended as if all was there."""
    files = {"output_file_id": "file-out", "error_file_id": "file-err"}
    server.on("GET /v1/batches/batch_1", ok(batch("completed", **files)))
    server.on("GET /v1/files/file-out/content", content(b"out\n"))
    server.on("GET /v1/files/file-err/content", content(b"err\n"))
    out, link = tmp_path / "out.jsonl", tmp_path / "link"
    link.symlink_to(out)
    for other in (out, link):
        arguments = ["batch", "results", "batch_1", "-o", str(out), "--errors", str(other)]
        assert main(arguments) == ExitStatus.USAGE
        assert "--output and --errors are the same file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [link]
    assert main(["batch", "results", "batch_1", "-o", os.devnull, "--errors", os.devnull]) == 0


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


def test_results_whose_reader_has_gone_are_no_failure(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weir batch results B | head -1` ended as a batch that failed does."""
    server.on("GET /v1/batches/batch_1", ok(batch("completed", output_file_id="file-out")))
    server.on("GET /v1/files/file-out/content", content(b"out\n" * (1 << 18)))
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(["batch", "results", "batch_1"]) == ExitStatus.OK


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
