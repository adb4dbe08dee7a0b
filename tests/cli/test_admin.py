"""`weir tenants` and `weir keys` against a real control plane."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from tests.support.serving import serve_in_thread
from tests.support.waiting import eventually
from weir_cli import console
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
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{url}/admin/v1/keys", headers=headers, timeout=60).status_code != 401


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


def test_a_terminal_shows_what_users_named_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    shown = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(console, "out", shown)
    console.show_rows(("id", "error"), [("batch_1", "refused: [red]x[/red]")])
    assert "batch_1" in screen.getvalue()
    assert "refused: [red]x[/red]" in screen.getvalue()


@pytest.mark.parametrize("width", [200, 80, 20])
def test_a_terminal_shows_ids_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """An id that is cut can neither be revoked nor cancelled."""
    screen = io.StringIO()
    monkeypatch.setattr(
        console,
        "out",
        Console(file=screen, force_terminal=True, width=width, soft_wrap=True, highlight=False),
    )
    key_id = "key_84370611f4dff2f54ace63fb92c0dd89"
    note = "a name of [many] words " * 3
    console.show_rows(("id", "name", "state"), [(key_id, note, "active")])
    (row,) = [line for line in screen.getvalue().splitlines() if key_id in line]
    assert note.strip() in row
    assert "active" in row
    assert "state" in screen.getvalue()


@pytest.mark.usefixtures("control_plane")
def test_tenants_are_listed_with_their_limits(capsys: pytest.CaptureFixture[str]) -> None:
    made = said(capsys, "tenants", "create", "bounded", "--max-batches", "3")
    row = f"{made}\tbounded\t3\tdefault"
    assert row in said(capsys, "tenants", "list").splitlines()


def test_an_agents_key_can_expire(control_plane: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("keys", "create", "--scope", "agent", "--agent-id", "pod-1")
    assert works(control_plane, said(capsys, *arguments, "--expires-in-days", "2"))
    listed = said(capsys, "keys", "list")
    assert "\tagent\tpod-1\t" in listed
    assert "\tuntil 20" in listed


@pytest.mark.usefixtures("control_plane")
def test_a_key_whose_life_is_over_is_listed_as_expired(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "keys", "create", "--scope", "agent", "--name", "brief",
         "--expires-in-days", "1e-5")  # fmt: skip

    def expired() -> bool:
        (row,) = [line for line in said(capsys, "keys", "list").splitlines() if "\tbrief\t" in line]
        return row.rpartition("\t")[2].startswith("expired 20")

    assert eventually(expired, within_s=30)


@pytest.mark.parametrize("days", ["inf", "1e308", "36501"])
def test_a_life_beyond_what_the_control_plane_takes_is_refused(
    capsys: pytest.CaptureFixture[str], days: str
) -> None:
    assert main(["keys", "create", "--expires-in-days", days]) == ExitStatus.USAGE
    assert "--expires-in-days" in capsys.readouterr().err


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


def test_the_queue_names_batches_their_state_and_what_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = {
        "model": "tiny", "revision": None, "open_chunks": 2, "open_lines": 40, "leased_chunks": 1,
        "solo_chunks": 0, "expires_in_s": 7200.0, "eta_at": None,
    }  # fmt: skip
    answer = {
        "object": "list",
        "data": [
            {"batch_id": "batch_1", "reason": None, **running},
            {"batch_id": "batch_2", "reason": "NoMatchingModel", **running},
            {"batch_id": "batch_3", "reason": None, "stuck": True, **running},
        ],
        "failing": [
            {"batch_id": "batch_4", "stage": "finalizing", "failures": 7, "retry_in_s": 59.6,
             "error": "OSError: [Errno 28] No space left on device"},
        ],
    }  # fmt: skip
    asked = []

    async def app(scope: dict[str, Any], _receive: object, send: Any) -> None:  # noqa: ANN401
        if scope["type"] != "http":
            return
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    monkeypatch.setenv("WEIR_API_KEY", "weir_admin")
    with serve_in_thread(app) as url:
        rows = [row.split("\t") for row in said(capsys, "queue", "--url", url).splitlines()]
    assert asked == ["/internal/v1/queue"]
    assert [row[:2] for row in rows] == [
        ["batch_4", "finalizing"],
        ["batch_1", "running"],
        ["batch_2", "NoMatchingModel"],
        ["batch_3", "stuck"],
    ]
    assert rows[0][2].startswith("failed 7 times, again in 60 s: OSError: [Errno 28] No space")
    assert rows[1][2] == "tiny: 40 lines wait, 1 chunks are out, 2.0 h left"


@pytest.mark.usefixtures("control_plane")
def test_an_idle_control_plane_has_an_empty_queue(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "queue") == ""
