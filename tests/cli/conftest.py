"""Fixtures of the command line's tests."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.cli.scripted import LINE, Server, no_sleep
from weir_cli import batch as batch_module
from weir_cli.api import Api
from weir_cli.watch import follow


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    scripted = Server()
    transport = httpx.MockTransport(scripted)
    monkeypatch.setattr(batch_module, "Api", partial(Api, transport=transport, sleep=no_sleep))
    monkeypatch.setattr(batch_module, "follow", partial(follow, sleep=no_sleep))
    monkeypatch.setenv("WEIR_URL", "http://weir.test:8080/v1/")
    monkeypatch.setenv("WEIR_API_KEY", "weir_secret")
    return scripted


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    return path
