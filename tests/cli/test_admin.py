"""`weir tenants` and `weir keys` against a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.serving import serve_in_thread
from weir_cli.errors import ExitStatus
from weir_cli.main import main
from weir_controlplane.main import default_app
from weir_controlplane.settings import Settings


@pytest.fixture
def control_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its URL; the environment holds its first admin key."""
    with serve_in_thread(default_app(Settings(data_dir=tmp_path))) as url:
        monkeypatch.setenv("WEIR_URL", url)
        monkeypatch.setenv("WEIR_API_KEY", (tmp_path / "admin.key").read_text().strip())
        yield url


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out.strip()


def works(url: str, key: str) -> bool:
    answer = httpx.get(f"{url}/admin/v1/keys", headers={"Authorization": f"Bearer {key}"})
    return answer.status_code != 401


def test_a_key_is_made_listed_and_revoked(
    control_plane: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "tenants", "create", "search").startswith("tenant_")
    key = said(capsys, "keys", "create", "--tenant", "search", "--name", "nightly")
    assert key.startswith("weir_")
    assert works(control_plane, key)

    listed = [row.split("\t") for row in said(capsys, "keys", "list").splitlines()]
    (row,) = [row for row in listed if row[4] == "nightly"]
    assert row[1:3] == ["tenant", "search"]
    assert row[5] == "active"
    assert key not in "".join(row)

    said(capsys, "keys", "revoke", row[0])
    assert not works(control_plane, key)
    assert "revoked" in said(capsys, "keys", "list")


def test_an_agents_key_can_expire(control_plane: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("keys", "create", "--scope", "agent", "--agent-id", "pod-1")
    assert works(control_plane, said(capsys, *arguments, "--expires-in-days", "2"))
    listed = said(capsys, "keys", "list")
    assert "\tagent\tpod-1\t" in listed
    assert "\tuntil 20" in listed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("keys", "create"), "tenant: a key of scope tenant needs a tenant"),
        (("keys", "create", "--tenant", "none"), "there is no tenant none"),
        (("keys", "revoke", "key_none"), "there is no key key_none"),
    ],
)
@pytest.mark.usefixtures("control_plane")
def test_a_refusal_is_told_in_words(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert main(arguments) == ExitStatus.REFUSED
    assert told in capsys.readouterr().err


def test_a_tenants_key_may_not_administrate(
    control_plane: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "tenants", "create", "search")
    key = said(capsys, "keys", "create", "--tenant", "search")
    assert main(("keys", "list", "--url", control_plane, "--api-key", key)) == ExitStatus.REFUSED
    assert "needs a key of scope admin" in capsys.readouterr().err
