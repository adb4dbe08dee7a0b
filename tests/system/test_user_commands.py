"""What the README tells a user to type, against a running stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import MODEL, Stack

pytestmark = [pytest.mark.system, pytest.mark.vllm, pytest.mark.timeout(600)]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def batch_file(tmp_path: Path) -> Path:
    """The example's input with the model that the stack serves."""
    path = tmp_path / "batch.jsonl"
    path.write_text((EXAMPLES / "batch.jsonl").read_text().replace('"llama"', f'"{MODEL}"'))
    return path


def run(stack: Stack, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "WEIR_URL": stack.controlplane.url,
        "WEIR_API_KEY": stack.key(),
        "OPENAI_BASE_URL": f"{stack.controlplane.url}/v1",
        "OPENAI_API_KEY": stack.key(),
    }
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )


def test_the_example_prints_every_answer(stack: Stack, batch_file: Path) -> None:
    done = run(stack, EXAMPLES / "submit.py", batch_file)
    assert done.returncode == 0, done.stderr
    assert [row.split(":")[0] for row in done.stdout.splitlines()[1:]] == [
        "greet-1",
        "greet-2",
        "greet-3",
    ]


def test_the_command_line_submits_follows_and_fetches(
    stack: Stack, batch_file: Path, tmp_path: Path
) -> None:
    weir = ("-m", "weir_cli", "batch")
    submitted = run(stack, *weir, "submit", batch_file, "--wait", "--metadata", "team=docs")
    assert submitted.returncode == 0, submitted.stderr
    batch_id = submitted.stdout.strip()
    status = run(stack, *weir, "status", batch_id)
    assert status.stdout == f"{batch_id}: completed, 3 of 3 lines done\n"
    assert batch_id in run(stack, *weir, "status").stdout
    output = tmp_path / "out.jsonl"
    assert run(stack, *weir, "results", batch_id, "-o", output).returncode == 0
    rows = [json.loads(row) for row in output.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == ["greet-1", "greet-2", "greet-3"]
    cancelled = run(stack, *weir, "cancel", batch_id)
    assert cancelled.returncode == 4
    assert "refused (400)" in cancelled.stderr
