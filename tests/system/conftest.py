"""One stack for the tests that leave it as they found it; the model is made once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import shared
from tests.support.stack import Stack
from tests.support.tiny import write_tiny_model

STACK = pytest.StashKey[Stack]()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "sample")


@pytest.fixture
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> Stack:
    """A control plane and an agent, shared: a test must leave them running and idle."""
    return shared(
        request, STACK, lambda: closing(Stack(tmp_path_factory.mktemp("stack"), tiny_model))
    )
