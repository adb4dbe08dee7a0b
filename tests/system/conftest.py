"""One stack for the tests that leave it as they found it; the model is made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import Stack
from tests.support.tiny import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "sample")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    """A control plane and an agent, shared: a test must leave them running and idle."""
    running = Stack(tmp_path_factory.mktemp("stack"), tiny_model)
    yield running
    running.close()
