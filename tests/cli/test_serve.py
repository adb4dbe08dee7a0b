"""`weir serve`: a wrong setting ends it at once, named by its variable."""

from __future__ import annotations

import builtins

import pytest

from weir_cli.errors import ExitStatus
from weir_cli.main import main


@pytest.mark.parametrize(
    ("component", "variable", "value", "said"),
    [
        ("controlplane", "WEIR_PORT", "eighty", "WEIR_PORT: Input should be a valid integer"),
        ("controlplane", "WEIR_DATABASE_URL", "mysql://", "WEIR_DATABASE_URL: must start with"),
        ("agent", "WEIR_AGENT_ID", "a b", "WEIR_AGENT_ID: String should match pattern"),
        ("agent", "WEIR_SLO", "p99=1", '"slo"'),
        ("agent", "WEIR_SLO", '[{"metric": "tbt"}]', "WEIR_SLO: 0.statistic: Field required"),
    ],
)
def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    component: str,
    variable: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["serve", component]) == ExitStatus.USAGE
    captured = capsys.readouterr().err
    assert said in captured
    assert "docs/operations.md" in captured


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def without_component(name: str, *rest: object) -> object:
        if name == "weir_controlplane.main":
            raise ModuleNotFoundError(name="fastapi")
        return original(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_component)
    assert main(["serve", "controlplane"]) == ExitStatus.USAGE
    captured = capsys.readouterr().err
    assert "fastapi is not installed" in captured
    assert "pip install 'weir[controlplane]'" in captured
