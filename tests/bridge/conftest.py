"""One engine for all tests of the bridge that need a real one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tests.bridge.engine_host import EngineHost


@pytest.fixture(scope="session")
def engine_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's and torch's own, while they load
        host = EngineHost(tmp_path_factory.mktemp("model"))
    yield host
    host.close()


@pytest.fixture
def host(engine_host: EngineHost) -> Iterator[EngineHost]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield engine_host
        engine_host.abort_all()
