"""`weir sim`, `weir plan`, `weir profile` as a user runs them: figures, files, errors by option."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import subprocess
import sys
import threading
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


def test_a_plan_finds_replicas_and_the_batch_tokens_of_a_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    status = main(
        "plan --slo ttft:p99:2 --peak 10 --sample 60 --rate 2 --offline synthetic:20 --most 6 "
        f"--json {path}".split()
        + SMALL
    )
    assert status == ExitStatus.OK
    answer = json.loads(path.read_text())
    assert answer["replicas"] == len(answer["trials"])
    assert answer["offline_tokens_a_day"] > 1e6
    assert f"{answer['replicas']} replica(s) of rtx-pro-6000" in capsys.readouterr().out


def test_a_plan_reads_its_offline_set_before_it_looks_for_replicas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That may take hours: a wrong name is told before."""
    arguments = ["plan", "--slo", "ttft:p99:2", "--peak", "10", "--offline", "lengths:nowhere.csv"]
    assert main([*arguments, *SMALL]) == ExitStatus.USAGE
    told = capsys.readouterr()
    assert "nowhere.csv: No such file" in told.err
    assert "replica(s)" not in told.out


def test_a_long_answer_at_the_end_of_the_peak_is_waited_for(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.csv", tmp_path / "plan.json"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,20\n9,100,6000\n")
    arguments = f"plan --slo tbt:p99:0.1 --peak 10 --trace {trace} --offline none --json {path}"
    assert main(arguments.split()) == ExitStatus.OK
    (trial,) = json.loads(path.read_text())["trials"]
    assert trial["replicas"] == 1
    assert trial["unanswered"] == 0


def test_batch_tokens_of_a_day_are_those_beside_online_traffic(tmp_path: Path) -> None:
    """Up to the last arrival: how much there is to do afterwards makes no difference."""
    trace, batch, path = (tmp_path / name for name in ("trace.csv", "batch.csv", "plan.json"))
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,20\n2,100,20\n")
    made = []
    for requests in (300, 500):
        batch.write_text("input_tokens,output_tokens\n" + "900,50\n" * requests)
        arguments = f"plan --slo ttft:p99:9 --peak 10 --trace {trace} --json {path}".split()
        assert main([*arguments, "--offline", f"lengths:{batch}", *SMALL]) == ExitStatus.OK
        made.append(json.loads(path.read_text()))
    assert [found["with_offline"]["offline_finished"] for found in made] == [300, 500]
    assert made[0]["offline_tokens_a_day"] == made[1]["offline_tokens_a_day"] > 0


def test_a_plan_says_of_which_part_of_the_trace_its_batch_tokens_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quiet first minute says nothing of a day that is busier on average."""
    trace, path = tmp_path / "trace.csv", tmp_path / "plan.json"
    rows = ["0,100,20", *["60,100,20"] * 4, *["119,100,20"] * 3, "120,100,20"]
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    arguments = f"plan --slo ttft:p99:9 --peak 10 --sample 60 --trace {trace} --json {path}".split()
    assert main([*arguments, "--offline", "none"]) == ExitStatus.OK
    found = json.loads(path.read_text())
    assert (found["sample_s"], found["trace_s"]) == (60.0, 120.0)
    assert found["sample_load"] == pytest.approx((1 / 60) / (9 / 120))
    said = " ".join(capsys.readouterr().out.split())
    assert "the first 60 s of 120, which have 0.22 times the trace's mean load" in said
    assert "--sample 120 runs all of it" in said
    assert main([*arguments, "--offline", "none", "--sample", "120"]) == ExitStatus.OK
    assert "mean load" not in capsys.readouterr().out


def test_a_plan_of_the_whole_trace_has_its_last_arrivals(tmp_path: Path) -> None:
    """They were cut off, so a burst at the end of a day was none of it."""
    trace, path = tmp_path / "trace.csv", tmp_path / "plan.json"
    rows = "0,100,20\n" + "120,100,20\n" * 3
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    arguments = f"plan --slo ttft:p99:9 --peak 10 --trace {trace} --offline none --json {path}"
    assert main(arguments.split()) == ExitStatus.OK
    found = json.loads(path.read_text())
    assert (found["sample_s"], found["sample_load"]) == (120.0, 1.0)
    assert found["with_offline"]["online_arrived"] == 4


def test_slos_beside_batch_work_hold_only_where_answers_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer that ends after the last minute has its say, too: here it has all."""
    trace, path = tmp_path / "trace.csv", tmp_path / "plan.json"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,6000\n")
    arguments = (
        f"plan --preset sarathi --slo tbt:mean:0.015 --peak 10 --trace {trace} --json {path}"
    )
    assert main([*arguments.split(), "--offline", "synthetic:100"]) == ExitStatus.OK
    found = json.loads(path.read_text())["with_offline"]
    assert found["online_answered"] == found["online_arrived"] == 1
    (slo,) = found["slos"]
    assert slo["measured_s"] > 0.015
    assert "SLOs MISSED with them" in capsys.readouterr().out


def test_requests_that_nobody_answers_are_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, path = tmp_path / "trace.csv", tmp_path / "run.json"
    rows = "".join(f"{i / 100},3000,1000\n" for i in range(100))
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    arguments = f"sim --seconds 10 --slo ttft:p50:50 --trace {trace} --offline none --json {path}"
    assert main([*arguments.split(), "--max-seqs", "2"]) == ExitStatus.OK
    found = json.loads(path.read_text())
    assert 0 < found["online_answered"] < 20
    assert found["latencies_s"]["ttft"]["p50"] > 60
    assert "ttft p50" in (said := capsys.readouterr().out)
    assert "of 50000.0 ms: MISSED" in said


@pytest.mark.parametrize("command", ["sim --seconds 10", "plan --peak 10 --most 1"])
def test_who_may_wait_for_minutes_is_waited_for(tmp_path: Path, command: str) -> None:
    """A minute after the last arrival the plan gave up on requests that were not yet late."""
    trace, path = tmp_path / "trace.csv", tmp_path / "run.json"
    rows = "".join(f"{i / 100},3000,1000\n" for i in range(30))
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    arguments = f"{command} --slo ttft:p99:300 --trace {trace} --offline none --json {path}"
    assert main([*arguments.split(), "--max-seqs", "2"]) == ExitStatus.OK
    found = json.loads(path.read_text())
    run = found.get("with_offline", found)
    assert run["online_answered"] == run["online_arrived"] == 30
    assert 60 < run["slos"][0]["measured_s"] < 300
    assert run["slos"][0]["held"]


def test_an_objective_that_nothing_was_measured_for_is_not_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, path = tmp_path / "trace.csv", tmp_path / "run.json"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,1\n")
    arguments = f"sim --seconds 5 --slo tbt:p99:0.1 --trace {trace} --offline none --json {path}"
    assert main(arguments.split()) == ExitStatus.OK
    (slo,) = json.loads(path.read_text())["slos"]
    assert (slo["measured_s"], slo["held"]) == (None, False)
    assert "tbt p99 of 100.0 ms: no request has one" in capsys.readouterr().out


def test_a_plan_counts_requests_that_wait_for_their_first_token(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{i / 100},3000,1000\n" for i in range(100))
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    arguments = f"plan --slo tbt:p99:1 --peak 10 --trace {trace} --offline none --most 1"
    assert main([*arguments.split(), "--max-seqs", "2"]) == ExitStatus.FAILED
    assert "unanswered: does not hold" in capsys.readouterr().out


def test_an_objective_that_no_answer_has_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,1\n9,100,1\n")
    arguments = f"plan --slo tbt:p99:0.1 --peak 10 --trace {trace} --offline none"
    assert main(arguments.split()) == ExitStatus.USAGE
    assert "--slo: no tbt was measured" in capsys.readouterr().err


def test_a_plan_that_cannot_hold_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--slo", "ttft:p50:0.0001", "--peak", "10", "--most", "1", *SMALL]
    assert main(arguments) == ExitStatus.FAILED
    assert "do not hold" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "best"], "--preset: 'best' is unknown"),
        (["--backend", "magic"], "--backend: 'magic' is unknown"),
        (["--profile", "abacus"], "--profile: 'abacus' is no bundled profile"),
        (["--profile", "a100-80gb-llama-2-70b-tp1"], "use more GPUs"),
        (["--slo", "tbt:p99"], "--slo 'tbt:p99': it has 2 of 3 parts"),
        (["--slo", "tbt:max:1"], "give 'mean' or"),
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


def test_a_folder_for_plots_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "below"
    assert main(["sim", "--seconds", "2", "--plots", str(place), *SMALL]) == ExitStatus.FAILED
    told = capsys.readouterr()
    said = "".join(told.err.split())
    assert f"{place}:" in said
    assert "thatcanbewritten" in said
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


def recording(path: Path, *, steps: int, seed: int) -> Path:
    """Steps of an engine: 5 ms, 0.1 ms a prefilled token, 0.2 ms a decode, a little noise."""
    rng = random.Random(seed)  # noqa: S311 - test data
    engine = {
        "block_size_tokens": 32,
        "total_blocks": 700,
        "max_batched_tokens": 512,
        "max_seqs": 16,
        "max_model_len_tokens": 2048,
    }
    rows: list[dict[str, object]] = [{"engine": engine}]
    for _ in range(steps):
        prefills = [[rng.randrange(2, 500), rng.randrange(0, 900)]] * rng.randrange(2)
        decodes = [rng.randrange(1, 1500) for _ in range(rng.randrange(1, 12))]
        seconds = 0.005 + 1e-4 * sum(n for n, _ in prefills) + 2e-4 * len(decodes)
        rows.append(
            {
                "prefills": prefills,
                "decodes": decodes,
                "seconds": seconds * rng.uniform(0.97, 1.03),
                "pause_s": 0.001,
            }
        )
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_a_recorded_engine_becomes_a_profile_that_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, figures = tmp_path / "engine.json", tmp_path / "run.json"
    steps = recording(tmp_path / "steps.jsonl", steps=300, seed=1)
    others = recording(tmp_path / "others.jsonl", steps=100, seed=2)
    assert main(["profile", str(steps), "--output", str(made), "--judge", str(others)]) == 0
    assert "300 steps fitted" in capsys.readouterr().out
    profile = json.loads(made.read_text())
    assert (profile["fitted_steps"], profile["judged_steps"]) == (300, 100)
    assert profile["judged_error"] < 0.05
    arguments = f"sim --profile {made} --seconds 10 --offline synthetic:5 --json {figures}"
    assert main(arguments.split()) == ExitStatus.OK
    found = json.loads(figures.read_text())
    # Nothing is faster than a step and the pause before it; a prompt takes 0.1 ms a token on top.
    assert 0.006 < found["latencies_s"]["tbt"]["p50"] < 0.2
    assert found["online_answered"] > 5
    assert found["offline_served_tokens_s"] > 0


@pytest.mark.parametrize("folder", ["[run]", "a[/b]"])
def test_files_are_told_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    """Whatever brackets mean to who prints them."""
    made = tmp_path / folder / "engine.json"
    steps = recording(tmp_path / "steps.jsonl", steps=100, seed=1)
    assert main(["profile", str(steps), "--output", str(made)]) == ExitStatus.OK
    assert f"wrote {made}" in capsys.readouterr().out
    plots = tmp_path / folder / "plots"
    arguments = ["sim", "--seconds", "2", "--offline", "none", "--plots", str(plots)]
    assert main(arguments) == ExitStatus.OK
    assert f"wrote {plots / 'tokens.png'}" in capsys.readouterr().out


def test_without_a_judge_the_last_fifth_of_the_steps_is_kept_out(tmp_path: Path) -> None:
    made = tmp_path / "engine.json"
    steps = recording(tmp_path / "steps.jsonl", steps=100, seed=1)
    assert main(["profile", str(steps), "--output", str(made)]) == ExitStatus.OK
    profile = json.loads(made.read_text())
    assert (profile["fitted_steps"], profile["judged_steps"]) == (80, 20)


def test_steps_of_an_engine_that_was_killed_are_read(tmp_path: Path) -> None:
    """Its last line ends anywhere; another start, or the end of the file, follows."""
    made = tmp_path / "engine.json"
    first = recording(tmp_path / "first.jsonl", steps=50, seed=1).read_text()
    second = recording(tmp_path / "second.jsonl", steps=50, seed=2).read_text()
    steps = tmp_path / "steps.jsonl"
    steps.write_text(f"{first[:-20]}\n{second[:-20]}")
    assert main(["profile", str(steps), "--output", str(made)]) == ExitStatus.OK
    profile = json.loads(made.read_text())
    assert profile["fitted_steps"] + profile["judged_steps"] == 98


def test_a_torn_line_amid_a_recording_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = recording(tmp_path / "steps.jsonl", steps=50, seed=1)
    lines = steps.read_text().splitlines()
    steps.write_text("\n".join([*lines[:20], lines[20][:-9], *lines[21:]]))
    assert main(["profile", str(steps), "--output", "x"]) == ExitStatus.USAGE
    assert "row 21: not JSON" in capsys.readouterr().err


def test_profiles_that_cannot_be_used_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, broken = tmp_path / "steps.jsonl", tmp_path / "broken.json"
    made = tmp_path / "engine.json"
    broken.write_text("{}")
    main(["profile", str(recording(steps, steps=100, seed=1)), "--output", str(made)])
    few = recording(tmp_path / "few.jsonl", steps=9, seed=1)
    for arguments, message in (
        (["profile", str(few), "--output", "x"], "record 30 or more"),
        (["profile", str(broken), "--output", "x"], "decodes is None"),
        (["sim", "--profile", str(broken)], "--profile: recorded profile: format is not"),
        (["sim", "--profile", str(steps)], "--profile: "),
        (["sim", "--profile", str(made), "--backend", "overlapped"], "leave --backend out"),
    ):
        capsys.readouterr()
        assert main(arguments) == ExitStatus.USAGE
        assert message in " ".join(capsys.readouterr().err.split())
