"""Settings: read from the environment, wrong ones refused by name and remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from weir_operator.settings import OperatorSettings

ROOT = Path(__file__).resolve().parents[3]
URL = "http://weir-controlplane.weir:8080"


def test_they_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_OPERATOR_CONTROL_PLANE_URL", URL)
    monkeypatch.setenv("WEIR_OPERATOR_NAMESPACES", "team-b, team-a,")
    monkeypatch.setenv("WEIR_OPERATOR_IMAGE_PULL_SECRETS", "second, first, second,")
    monkeypatch.setenv("WEIR_OPERATOR_POD_NAME", "weir-operator-0")
    settings = OperatorSettings()  # type: ignore[call-arg] # the environment gives it
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.defaults().image_pull_secrets == ("second", "first")
    assert settings.user_agent == "weir-operator/weir-operator-0"
    assert settings.identity() != settings.identity()
    assert settings.defaults().control_plane_url == URL


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"control_plane_url": "weir:8080"}, "control_plane_url"),
        ({"renew_deadline_s": 8.0}, "renew_deadline_s \\+ write_timeout_s"),
        ({"retry_s": 5.0}, "retry_s \\+ lease_request_timeout_s"),
        ({"workers": 0}, "workers"),
        ({"image_pull_policy": "Sometimes"}, "image_pull_policy"),
        ({"port": 70000}, "port"),
        ({"namespaces": "search,Team_A"}, "namespaces"),
        ({"dns_ports": "53,dns"}, "dns_ports"),
        ({"dns_ports": ""}, "dns_ports"),
        ({"image_pull_secrets": "registry,A_b"}, "image_pull_secrets"),
        ({"pod_monitor_labels": {"release": "two words"}}, "pod_monitor_labels"),
        ({"pod_monitor_labels": {"a/b/c": "x"}}, "pod_monitor_labels"),
    ],
)
def test_a_wrong_one_is_named(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        OperatorSettings.model_validate({"control_plane_url": URL, **given})


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "operator.md").read_text()
    documented = set(re.findall(r"`WEIR_OPERATOR_([A-Z_]+)`", page))
    assert {name.upper() for name in OperatorSettings.model_fields} <= documented


def test_the_operator_needs_no_other_component() -> None:
    """Its image has the command line and itself alone."""
    program = """
import sys
for name in ("weir_engine", "weir_agent", "weir_controlplane"):
    sys.modules[name] = None
import weir_operator.main
from weir_cli.main import run
sys.argv = ["weir", "serve", "operator", "--help"]
run()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Kubernetes operator" in done.stdout
