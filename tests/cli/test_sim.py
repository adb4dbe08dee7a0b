"""`weir sim` and `weir plan` as a user runs them: figures, and errors by option."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir_cli.errors import ExitStatus
from weir_cli.main import main
from weir_cli.sim.inputs import Load, read_offline, read_trace

SMALL = ["--max-batched-tokens", "1024", "--max-seqs", "32", "--max-model-len", "4096"]


def test_a_run_writes_figures_trace_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, trace, plots = tmp_path / "a" / "run.json", tmp_path / "run.trace", tmp_path / "plots"
    status = main(
        f"sim --seconds 10 --slo tbt:p99:0.2 --slo ttft:p99:5 --offline synthetic:20 --replicas 2 "
        f"--json {figures} --chrome {trace} --plots {plots}".split()
        + SMALL
    )
    assert status == ExitStatus.OK
    found = json.loads(figures.read_text())
    assert found["replicas"] == 2
    assert found["online_answered"] == found["online_arrived"] > 5
    assert [slo["held"] for slo in found["slos"]] == [True, True]
    assert found["offline_served_tokens_s"] > 100
    assert found["latencies_s"]["ttft"]["p50"] < found["latencies_s"]["ttft"]["p99"]
    assert len(json.loads(trace.read_text())["traceEvents"]) > 100
    assert {path.name for path in plots.iterdir()} == {"tokens.png", "latencies.png"}
    printed = capsys.readouterr().out
    assert "tbt p99" in printed
    assert "held" in printed


@pytest.mark.parametrize("command", ["sim --seconds 2", "plan --slo ttft:p99:9 --peak 10"])
def test_files_are_written_though_the_reader_of_the_figures_has_gone(
    tmp_path: Path, command: str
) -> None:
    """As in `weir sim --json F | head -1`, which ended in silence without the file."""
    trace, path = tmp_path / "trace.csv", tmp_path / "run.json"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,20\n")
    reading, writing = os.pipe()
    os.close(reading)
    arguments = f"{command} --trace {trace} --offline none --json {path}".split()
    with os.fdopen(writing, "wb") as gone:
        ended = subprocess.run(
            [sys.executable, "-m", "weir_cli", *arguments],
            stdout=gone,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (ExitStatus.OK, b"")
    assert json.loads(path.read_text())


def test_two_runs_with_one_seed_are_equal(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        path = tmp_path / name
        arguments = ["sim", "--seconds", "5", "--seed", "4", *SMALL, "--offline", "synthetic:10"]
        assert main([*arguments, "--json", str(path)]) == ExitStatus.OK
        found.append(json.loads(path.read_text()))
    assert found[0] == found[1]


def test_without_offline_work_none_is_done(tmp_path: Path) -> None:
    path = tmp_path / "alone.json"
    arguments = ["sim", "--seconds", "5", *SMALL, "--offline", "none", "--json", str(path)]
    assert main(arguments) == ExitStatus.OK
    found = json.loads(path.read_text())
    assert found["offline_served_tokens_s"] == 0
    assert found["slos"] == []


def test_a_run_ends_with_its_trace(tmp_path: Path) -> None:
    """What an idle machine serves for minutes after it is not beside online traffic."""
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{second},900,60\n" for second in range(20))
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    found = []
    for seconds in ("20", "300"):
        path = tmp_path / seconds
        arguments = ["sim", "--trace", str(trace), "--seconds", seconds, "--json", str(path)]
        assert main([*arguments, *SMALL, "--offline", "synthetic:40"]) == ExitStatus.OK
        found.append(json.loads(path.read_text()))
    assert found[0] == found[1]
    assert found[0]["seconds"] == 19 + 60


@pytest.mark.parametrize("command", ["sim --seconds 5", "plan --slo ttft:p99:9 --peak 10"])
def test_requests_that_are_too_long_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Left out without a word, a day of long papers came to 0.0 M batch tokens."""
    trace, batch = tmp_path / "trace.csv", tmp_path / "batch.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,20\n1,4090,20\n2,100,20\n")
    batch.write_text("input_tokens,output_tokens\n" + "20000,50\n" * 3)
    arguments = f"{command} --trace {trace} --offline lengths:{batch}".split()
    assert main([*arguments, *SMALL]) == ExitStatus.OK
    told = " ".join(capsys.readouterr().err.split())
    assert "--trace: 1 of 3 requests are left out" in told
    assert "--offline: 3 of 3 requests are left out" in told
    assert "--max-model-len, 4096 tokens" in told
    fitting = ["sim", "--seconds", "2", "--offline", "none", "--trace", str(trace)]
    assert main(fitting) == ExitStatus.OK
    assert "left out" not in capsys.readouterr().err


def test_requests_that_got_no_token_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them made a whole public data set unreadable."""
    trace, batch = tmp_path / "trace.csv", tmp_path / "batch.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,20\n1,10,0\n9,10,0\n")
    batch.write_text("input_tokens,output_tokens\n10,0\n0,10\n20,50\n9000,50\n")
    assert len(read_trace(str(trace), Load(seconds=5), longest_tokens=4096)) == 1
    assert len(read_offline(f"lengths:{batch}", seed=0, longest_tokens=4096)) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "--trace: 1 of 2 requests are left out: their prompts or answers have no token" in told
    assert "--offline: 2 of 4 requests are left out: their prompts or answers have no token" in told
    assert "--offline: 1 of 2 requests are left out: with their answers" in told


def test_requests_of_coding_sessions_that_are_too_long_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = tmp_path / "sessions.jsonl"
    requests = [{"t": t, "in": 640 * 9**t, "out": 5, "ids": [[1, 10 * 9**t]]} for t in (0, 1)]
    session = {"session": "s", "block_tokens": 64, "requests": requests}
    sessions.write_text(json.dumps(session) + "\n")
    read_trace(f"coding:{sessions}", Load(seconds=None), longest_tokens=4096)
    read_offline(f"trace:coding:{sessions}", seed=0, longest_tokens=4096)
    told = " ".join(capsys.readouterr().err.split())
    assert "--trace: 1 of 2 requests are left out" in told
    assert "--offline: 1 of 2 requests are left out" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "best"], "--preset: 'best' is unknown"),
        (["--backend", "magic"], "--backend: 'magic' is unknown"),
        (["--profile", "abacus"], "--profile: 'abacus' is no bundled profile"),
        (["--profile", "a100-80gb-llama-2-70b-tp1"], "use more GPUs"),
        (["--slo", "tbt:p99"], "--slo 'tbt:p99': it has 2 of 3 parts"),
        (["--slo", "tbt:max:1"], "give 'mean' or"),
        (["--slo", "ttft:mean:1e160"], "give seconds above 0, 86400.0 at most"),
        (["--trace", "/nowhere/trace.csv"], "/nowhere/trace.csv: No such file"),
        (["--trace", "punch:/nowhere"], "'punch' is no kind of trace"),
        (["--start", "1000000"], "no request is left"),
        (["--offline", "nothing"], "'nothing' is no kind"),
        (["--offline", "synthetic:x"], "'x' is no number"),
        (["--offline", "synthetic:²"], "'²' is no number"),
        (["--offline", "synthetic:99999999999"], "give a whole number from 1 to 100000"),
        (["--replicas", "99999999999999999999"], "--replicas"),
        (["--max-seqs", "99999999999999999999"], "--max-seqs"),
        (["--offline", "mmlu:one"], "mmlu:one: it does not name two files"),
        (["--preset", "hygen"], "static_budget_s"),
        (["--preset", "echo"], "remedy: give what the preset needs (docs/presets.md): --slo"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--seconds", "5", *arguments]) == ExitStatus.USAGE
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", ["sim", "plan --slo ttft:p99:9 --peak 10"])
def test_a_length_above_the_kv_cache_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*command.split(), "--profile", "a100-40gb-opt-13b-tp1", "--max-model-len", "13233"]
    assert main(arguments) == ExitStatus.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "--max-model-len: 13233 tokens do not fit" in said
    assert "give 13232 or less" in said


def test_the_longest_request_that_is_accepted_runs(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.csv", tmp_path / "run.json"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,13212,20\n0.1,500,20\n")
    arguments = f"sim --profile a100-40gb-opt-13b-tp1 --max-model-len 13232 --trace {trace}"
    assert main([*arguments.split(), "--offline", "none", "--json", str(path)]) == ExitStatus.OK
    assert json.loads(path.read_text())["online_answered"] == 2


@pytest.mark.parametrize("command", ["sim", "plan --slo ttft:p99:9"])
def test_a_step_budget_that_would_count_for_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """The figures were those of the preset's own budget, and nothing said so."""
    assert main([*command.split(), "--step-budget-ms", "40"]) == ExitStatus.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "--step-budget-ms: preset weir has no static step budget" in said
    assert "--preset hygen" in said
