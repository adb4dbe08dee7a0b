"""Benchmarks on both builds of the engine, and what compiling it asks of its code."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.engine_builds import ROOT, SOURCES, StaleBuildError, builds, run_in
from benchmarks.sim_speed import timed

PROFILE = "a100-80gb-llama-3.1-8b"


@pytest.mark.timeout(900)  # a minute of work that a busy machine stretches
def test_the_hot_modules_can_be_translated(tmp_path: Path) -> None:
    """mypyc takes all of them; that C compiles is its own business and needs a compiler."""
    command = [sys.executable, "-m", "scripts.compile_engine", "--translate", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name for path in (tmp_path / "c").glob("*.c")}
    assert "__native_weir_engine___sched___scheduler.c" in made
    assert "__native_weir_engine___kv___manager.c" in made


def test_without_a_compiled_engine_the_interpreted_one_is_measured(tmp_path: Path) -> None:
    assert builds(compiled=tmp_path / "none") == ("interpreted",)


def test_a_build_of_other_sources_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SOURCES / "weir_engine", tmp_path / "weir_engine")
    assert builds(compiled=tmp_path) == ("interpreted", "compiled")
    request = tmp_path / "weir_engine" / "request.py"
    request.write_text(request.read_text() + "\n")
    with pytest.raises(StaleBuildError, match=r"weir_engine/request\.py: run `make compiled`"):
        builds(compiled=tmp_path)


def test_equal_simulations_have_equal_digests_in_every_process() -> None:
    here = timed(PROFILE, None, 4.0, 1, offline=True)
    again = ["--workload", "co-located", "--profile", PROFILE, "--seconds", "4"]
    there = run_in("interpreted", "benchmarks.sim_speed", [*again, "--seed", "1"])
    other = run_in("interpreted", "benchmarks.sim_speed", [*again, "--seed", "2"])
    assert (there["build"], there["steps"]) == ("interpreted", here.steps)
    assert there["result"] == here.result != other["result"]
