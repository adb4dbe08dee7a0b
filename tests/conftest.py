"""Fixtures for everything that needs a real server; each starts on first use only."""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import hypothesis
import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.binaries import Binaries
from e2e.cluster.kubectl import Kubectl
from tests.support.postgres import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.serving import ASGIApp, serve

ROOT = Path(__file__).resolve().parents[1]
SHARED = ("api_server", "stack", "engine_host")  # servers that a run starts once
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def pytest_configure() -> None:
    # Python ends at once on SIGTERM: the servers that the tests started would stay behind.
    signal.signal(signal.SIGTERM, lambda _number, _frame: pytest.exit("terminated", 143))
    # How long an example takes says how busy the machine is.
    hypothesis.settings.register_profile("weir", deadline=None)
    hypothesis.settings.load_profile("weir")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Beside other workers: the users of one server stay together, and what takes long begins."""
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_begins)


def _group(item: pytest.Item) -> str:
    servers = [name for name in SHARED if name in getattr(item, "fixturenames", ())]
    return servers[0] if servers else item.path.relative_to(ROOT).as_posix()


def _begins(item: pytest.Item) -> int:
    """Earlier with a lower number: shared servers, other whole processes, the rest."""
    if _group(item) in SHARED:
        return SHARED.index(_group(item))
    return len(SHARED) + (item.get_closest_marker("vllm") is None)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL cluster for the whole run."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL (``postgresql+asyncpg://``) of an empty database of this test's own."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server for the whole run."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of a Redis server emptied for this test."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def serve_app() -> Callable[[ASGIApp], AbstractAsyncContextManager[str]]:
    """``async with serve_app(app) as base_url``: an ASGI application on an ephemeral port."""
    return serve


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """An API server with its controllers and our CRDs for the whole run.

    A test that stops or pauses one of its processes starts it again before it ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="weir-test-kubernetes-"))
    server = ApiServer(folder, Binaries())
    try:
        server.start()
        server.apply_crds(ROOT / "crds")
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """A namespace of this test's own, where restricted pod security is enforced."""
    name = f"test-{secrets.token_hex(4)}"
    metadata = {"name": name, "labels": RESTRICTED}
    api_server.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield name
    api_server.kubectl.run("delete", "namespace", name, "--wait=false")


@pytest.fixture
def kubectl(api_server: ApiServer, namespace: str) -> Kubectl:
    """kubectl as an administrator, in the test's namespace unless a call names another."""
    return api_server.kubectl.inside(namespace)
