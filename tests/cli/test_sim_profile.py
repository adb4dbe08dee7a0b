"""`weir profile` as a user runs it: a recorded engine becomes a profile that is simulated."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from weir_cli.errors import ExitStatus
from weir_cli.main import main


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
    huge, steep = tmp_path / "huge.json", tmp_path / "steep.json"  # beyond a float
    plain = json.loads(made.read_text())
    huge.write_text(json.dumps(plain | {"pause_s": 10**400}))
    steep.write_text(json.dumps(plain | {"coefficients": [10**400] * len(plain["coefficients"])}))
    few = recording(tmp_path / "few.jsonl", steps=9, seed=1)
    for arguments, message in (
        (["profile", str(few), "--output", "x"], "record 30 or more"),
        (["profile", str(broken), "--output", "x"], "decodes is None"),
        (["sim", "--profile", str(broken)], "--profile: recorded profile: format is not"),
        (["sim", "--profile", str(huge)], "--profile: recorded profile: pause_s is 1000"),
        (["sim", "--profile", str(steep)], "--profile: recorded profile: coefficients must be"),
        (["sim", "--profile", str(steps)], "--profile: "),
        (["sim", "--profile", str(made), "--backend", "overlapped"], "leave --backend out"),
    ):
        capsys.readouterr()
        assert main(arguments) == ExitStatus.USAGE
        assert message in " ".join(capsys.readouterr().err.split())
