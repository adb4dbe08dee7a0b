"""The fake engine of the other tests behaves as the real one: one contract for both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine_contract import check_engine
from tests.support.fake_engine import FakeEngine
from weir_agent.sample_model import SampleModelShape, write_sample_model

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(sys.path),
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_sample_model(
        folder,
        SampleModelShape(layers=2, hidden_size=128, intermediate_size=256, heads=4, kv_heads=2),
    )
    return folder


async def test_the_fake_keeps_the_contract() -> None:
    engine = FakeEngine()
    await check_engine(engine)
    assert engine.dead


@pytest.mark.vllm
def test_vllm_keeps_the_contract(model: Path, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom tests.support.engine_contract import check_vllm\n"
        "if __name__ == '__main__':\n    check_vllm(*sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(model), str(tmp_path)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("engine_args", "said"),
    [
        ("--max-num-seqs 4", "--model is missing"),
        ("--max-num-seqs 4 --model /nowhere/llama", "--model: there is no /nowhere/llama"),
        ("--model=./nowhere", "--model: there is no ./nowhere"),
    ],
)
def test_wrong_engine_args_are_told_in_one_line(
    tmp_path: Path, engine_args: str, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weir_cli", "serve", "agent"],
        env={
            **ENVIRONMENT,
            "WEIR_PORT": "0",
            "WEIR_DATA_DIR": str(tmp_path / "data"),
            "WEIR_ENGINE_ARGS": engine_args,
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: engine_args: {said}")
    assert "WEIR_ENGINE_ARGS" in last
    assert "Traceback" not in done.stderr
