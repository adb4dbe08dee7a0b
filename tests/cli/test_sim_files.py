"""Files that `weir sim` and `weir plan` read and write: every kind, and what is wrong with them."""

from __future__ import annotations

import errno
import gzip
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.test_sim import SMALL
from weir_cli.errors import ExitStatus
from weir_cli.main import main
from weir_cli.sim.inputs import Load, read_offline, read_trace


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("sim --trace /nowhere/trace.csv", "--json"),
        ("sim --trace /nowhere/trace.csv", "--chrome"),
        ("plan --slo ttft:p99:9 --trace /nowhere/trace.csv", "--json"),
        ("profile /nowhere/steps", "--output"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan of an hour that ends so is lost; the trace, which is not there, comes after it."""
    (tmp_path / "file").touch()
    for place, why in ((tmp_path, "Is a directory"), (tmp_path / "file" / "below", "File exists")):
        assert main([*command.split(), option, str(place)]) == ExitStatus.USAGE
        said = "".join(capsys.readouterr().err.split())
        assert said == "".join(
            f"error: {option} {place}: {why} remedy: name a file that can be written".split()
        )


def test_a_file_that_is_refused_after_the_work_takes_no_figures_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    monkeypatch.setattr(Path, "write_text", refuse_to_write)
    arguments = ["sim", "--seconds", "2", "--json", str(tmp_path / "run.json"), *SMALL]
    assert main(arguments) == ExitStatus.FAILED
    told = capsys.readouterr()
    assert "run.json:Nospaceleftondevice" in "".join(told.err.split())
    assert "requests answered" in told.out


def refuse_to_write(_path: Path, _text: str, **_how: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_plots_that_cannot_be_made_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace, which is not there, comes after them."""
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "below"
    arguments = ["sim", "--trace", "/nowhere/trace.csv", "--plots"]
    assert main([*arguments, str(place)]) == ExitStatus.USAGE
    said = "".join(capsys.readouterr().err.split())
    assert f"--plots{place}:" in said
    assert "thatcanbewritten" in said
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*arguments, str(tmp_path / "plots")]) == ExitStatus.USAGE
    assert "matplotlib is not installed" in capsys.readouterr().err


def test_plots_that_cannot_be_written_after_the_work_take_no_figures_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens.png").mkdir()
    arguments = ["sim", "--seconds", "2", "--plots", str(tmp_path), *SMALL]
    assert main(arguments) == ExitStatus.FAILED
    told = capsys.readouterr()
    assert f"--plots{tmp_path}:Isadirectory" in "".join(told.err.split())
    assert "requests answered" in told.out


def test_a_bad_row_names_the_option_row_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens\n0,0,1\n"))
    assert main(["sim", "--trace", str(path)]) == ExitStatus.USAGE
    assert "--trace: trace row 2: input_tokens is '0'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"arrival_s" * 99, mtime=0)[:12] + b"\xff" * 40, "give a readable text"),
        (b"x" * 200_000, "--trace: field larger than field limit"),
        (b"[" * 100_000, "--trace: "),
    ],
    ids=["gzip", "field", "depth"],
)
@pytest.mark.parametrize("kind", ["csv", "mooncake"])
def test_a_file_that_is_no_trace_at_all_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, content: bytes, message: str
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    assert main(["sim", "--trace", f"{kind}:{path}"]) == ExitStatus.USAGE
    if kind == "csv":
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """What spreadsheets save as CSV in UTF-8."""
    content = "\ufeffarrival_s,input_tokens,output_tokens\r\n0,30,4\r\n1,31,5\r\n".encode()
    for name, given in (("plain", content), ("packed", gzip.compress(content))):
        (tmp_path / name).write_bytes(given)
        specs = read_trace(str(tmp_path / name), Load(seconds=None), longest_tokens=4096)
        assert [spec.prompt_tokens for spec in specs] == [30, 31]


def test_a_pipe_is_read_from_its_beginning(tmp_path: Path) -> None:
    """As of `--trace <(zcat trace.csv.gz)`: more than a buffer of it."""
    rows = "".join(f"{second},30,4\n" for second in range(5_000))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = f"arrival_s,input_tokens,output_tokens\n{rows}"
    writing = threading.Thread(target=pipe.write_text, args=(content,), daemon=True)
    writing.start()
    specs = read_trace(str(pipe), Load(seconds=None), longest_tokens=4096)
    writing.join()
    assert len(specs) == 5_000


def test_text_in_json_may_have_any_separator(tmp_path: Path) -> None:
    """Line and paragraph separators end no line of JSONL."""
    mmlu = tmp_path / "mmlu.jsonl"
    row = {"subject": "s", "question": "Why\u2028is\u2029it\u0085so?", "choices": ["a", "b"]}
    mmlu.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    (spec,) = read_offline(f"mmlu:{mmlu},{mmlu}", seed=0, longest_tokens=4096)
    assert spec.group == "s"


def test_a_number_beyond_all_bounds_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 10**400, "input_length": 5, "output_length": 5, "hash_ids": [1]}
    trace.write_text(json.dumps(row))
    assert main(["sim", "--trace", f"mooncake:{trace}"]) == ExitStatus.USAGE
    assert "trace row 1: timestamp is 1000" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--trace", "--profile"])
@pytest.mark.parametrize("kind", ["", "csv:", "other:"])
def test_a_file_that_cannot_be_looked_at_is_named(
    capsys: pytest.CaptureFixture[str], option: str, kind: str
) -> None:
    """As one in somebody else's folder: that is no defect of Weir."""
    name = kind + "x" * 300
    assert main(["sim", option, name]) == ExitStatus.USAGE
    assert "x" * 300 in capsys.readouterr().err


def test_offline_sets_of_every_kind(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("input_tokens,output_tokens\n100,5\n9000,5\n")
    loogle = tmp_path / "loogle.csv"
    loogle.write_text("document_chars,mean_answer_chars\n8000,70\n12000,90\n")
    mmlu = tmp_path / "mmlu.jsonl"
    row = {"subject": "s", "question": "Why is it so?", "choices": ["a", "b", "c", "d"]}
    mmlu.write_text(json.dumps(row) + "\n")
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,30,4\n")
    counts = {
        given: len(read_offline(given, seed=0, longest_tokens=4096))
        for given in (
            "none",
            f"lengths:{lengths}",
            f"loogle:{loogle}",
            f"mmlu:{mmlu},{mmlu}",
            f"trace:csv:{trace}",
        )
    }
    assert list(counts.values()) == [0, 1, 1951, 1, 1]


def test_coding_sessions_start_one_after_another(tmp_path: Path) -> None:
    entry = {"t": 0.0, "in": 640, "out": 5, "ids": [[1, 10]]}
    sessions = tmp_path / "sessions.jsonl"
    lines = [
        json.dumps({"session": str(i), "block_tokens": 64, "requests": [entry]}) for i in range(20)
    ]
    sessions.write_text("\n\n".join(lines) + "\n")
    load = Load(seconds=None)
    specs = read_trace(f"coding:{sessions}", load, longest_tokens=4096)
    assert [spec.group for spec in specs] == [f"session-{2 * i + 1}-{i}" for i in range(20)]
    assert specs[-1].arrival_s - specs[0].arrival_s > 600
