"""A start that cannot work is told in one line, before anything heavy is imported."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from weir_agent.main import run
from weir_agent.settings import load_settings


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("0.31.2", 'vLLM 0.31.2 is installed and Weir supports 0.32.x: install "vllm==0.32.*"'),
        (None, "vLLM is not installed: install it"),
    ],
)
def test_a_vllm_that_is_not_supported_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: str | None,
    said: str,
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    settings = load_settings(data_dir=tmp_path / "data", engine_args=("--model", "m"))
    with pytest.raises(SystemExit) as ended:
        run(settings)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not (tmp_path / "data").exists()
