"""`weir plan` as a user runs it: replicas for the peak, and batch tokens of a day."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_sim import SMALL
from weir_cli.errors import ExitStatus
from weir_cli.main import main


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


def test_a_trial_in_which_nobody_is_answered_is_still_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file had `Infinity`, which is none."""
    trace, path = tmp_path / "trace.csv", tmp_path / "plan.json"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + 3 * "0,100,8000\n")
    arguments = f"plan --slo ttft:p99:1 --peak 10 --trace {trace} --offline none --json {path}"
    assert main([*arguments.split(), "--max-seqs", "2"]) == ExitStatus.OK
    first, second = json.loads(path.read_text(), parse_constant=pytest.fail)["trials"]
    assert (first["ratio"], first["unanswered"]) == (None, 3)
    assert second["ratio"] < 1
    assert "1 replica(s): nobody, 3 unanswered: does not hold" in capsys.readouterr().out


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
    ("last", "rate", "told"),
    [
        ("1e18", "1", "trace row 3: arrival_s is '1e18': give at most 1e+13"),
        ("1e13", "1e-6", "on-3 arrives at 1e+19 s with all times multiplied by 1e+06"),
    ],
)
def test_times_beyond_all_traces_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], last: str, rate: str, told: str
) -> None:
    """As nanoseconds since 1970 are: 300 s before the last arrival were no time before it."""
    trace = tmp_path / "trace.csv"
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n0,100,20\n{last},100,20\n")
    arguments = f"plan --slo ttft:p99:9 --trace {trace} --offline none --rate {rate}".split()
    assert main(arguments) == ExitStatus.USAGE
    assert f"--trace: {told}" in " ".join(capsys.readouterr().err.split())
