"""One engine for all tests of the bridge that need a real one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.bridge.engine_host import EngineHost
from tests.conftest import shared

ENGINE = pytest.StashKey[EngineHost]()


@pytest.fixture
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineHost]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's and torch's own, while they load and run
        engine = shared(
            request, ENGINE, lambda: closing(EngineHost(tmp_path_factory.mktemp("model")))
        )
        yield engine
        engine.abort_all()
