"""`weir serve`: a wrong setting ends it at once, named by its variable."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from annotated_types import Le
from pydantic_settings import BaseSettings

from tests.support.waiting import eventually
from weir_agent.settings import AgentSettings
from weir_cli.errors import ExitStatus
from weir_cli.main import main
from weir_controlplane.settings import Settings
from weir_operator.settings import OperatorSettings

LABELS = "WEIR_OPERATOR_POD_MONITOR_LABELS"


@pytest.mark.parametrize(
    ("component", "variable", "value", "said"),
    [
        ("controlplane", "WEIR_PORT", "eighty", "WEIR_PORT: Input should be a valid integer"),
        ("controlplane", "WEIR_DATABASE_URL", "mysql://", "WEIR_DATABASE_URL: must start with"),
        ("agent", "WEIR_AGENT_ID", "a b", "WEIR_AGENT_ID: String should match pattern"),
        ("controlplane", "WEIR_SWEEP_S", "1e400", "WEIR_SWEEP_S: Input should be less than"),
        ("controlplane", "WEIR_PUBLIC_URL", "http://[", "WEIR_PUBLIC_URL: must be an http"),
        ("controlplane", "WEIR_REDIS_URL", "redis://h:x/0", "WEIR_REDIS_URL: must have a port"),
        ("agent", "WEIR_SLO", "p99=1", "WEIR_SLO: must be JSON"),
        ("agent", "WEIR_DRAIN_S", "inf", "WEIR_DRAIN_S: Input should be less than"),
        ("agent", "WEIR_CONTROL_PLANE_URL", "http://", "WEIR_CONTROL_PLANE_URL: must be an http"),
        ("agent", "WEIR_SLO", '[{"metric": "tbt"}]', "WEIR_SLO: 0.statistic: Field required"),
        ("operator", "WEIR_OPERATOR_PORT", "no", "WEIR_OPERATOR_PORT: Input should be a valid int"),
        ("operator", LABELS, "{release: prometheus}", f"{LABELS}: must be JSON"),
        ("operator", LABELS, '["release"]', f"{LABELS}: Input should be a valid dictionary"),
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
    page = "operator" if component == "operator" else "operations"
    assert f"docs/{page}.md" in captured


@pytest.mark.parametrize("settings", [Settings, AgentSettings, OperatorSettings])
def test_every_number_has_an_end(settings: type[BaseSettings]) -> None:
    """What no clock, database or system call takes must be refused at the start."""
    endless = []
    for name, field in settings.model_fields.items():
        if field.annotation in {int, float, int | None, float | None}:
            bounds = [item for item in field.metadata if isinstance(item, Le)]
            endless += [] if bounds else [name]
    assert endless == []


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__
    collecting = []

    def without_component(name: str, *rest: object) -> object:
        if name == "weir_controlplane.main":
            collecting.append(gc.isenabled())
            raise ModuleNotFoundError(name="fastapi")
        return original(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_component)
    assert main(["serve", "controlplane"]) == ExitStatus.USAGE
    captured = capsys.readouterr().err
    assert "fastapi is not installed" in captured
    assert "pip install 'weir[controlplane]'" in captured
    assert collecting == [False]
    assert gc.isenabled()


def test_a_component_collects_garbage_that_its_imports_did_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = []
    monkeypatch.setattr("weir_controlplane.main.run", lambda _settings: ran.append(gc.isenabled()))
    assert main(["serve", "controlplane"]) == ExitStatus.OK
    assert ran == [True]


@pytest.mark.system
@pytest.mark.parametrize("component", ["controlplane", "operator", "agent"])
def test_process_1_of_a_container_ends_while_it_imports(tmp_path: Path, component: str) -> None:
    """The kernel keeps signals from process 1 of a PID namespace that it has no handler for."""
    reached = tmp_path / "reached"
    slow = f"import pathlib, time\npathlib.Path({str(reached)!r}).touch()\ntime.sleep(600)\n"
    for name in ("uvicorn", "kopf", "structlog"):  # imported by one of them each
        (tmp_path / f"{name}.py").write_text(slow)
    paths = [str(tmp_path), *filter(None, sys.path)]
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [sys.executable, "-m", "weir_cli", "serve", component]
    process = subprocess.Popen(
        ["unshare", *user, "--pid", "--fork", "--kill-child", *command],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "WEIR_OPERATOR_CONTROL_PLANE_URL": "http://127.0.0.1:1",
        },
    )
    try:
        assert eventually(reached.exists)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        os.kill(int(children), signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
