"""Fixtures for everything that needs a real server; each starts on first use only."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
)
from pathlib import Path
from typing import TypeVar

import httpx
import httpx._transports.default as transports
import hypothesis
import pytest
import uvloop
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from e2e.cluster.api_server import ApiServer
from e2e.cluster.binaries import Binaries
from e2e.cluster.kubectl import Kubectl
from tests.support.postgres import PostgresServer, memory_folder
from tests.support.redis_server import RedisServer
from tests.support.serving import ASGIApp, serve

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests/system", "tests/operator", "tests/bridge", "tests/chart")
"""Each with an engine or an API server that its files share; what takes longest first."""
ON_UVLOOP = "tests/controlplane/"
"""Tests of the control plane, which runs on uvloop in production. So does the agent, but two of its
tests, with both ends of their connections on one loop, leave a loop that uvloop does not close."""
T = TypeVar("T")
API_SERVER = pytest.StashKey[ApiServer]()
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def pytest_configure() -> None:
    gc.disable()  # until all is imported: a fifth of the collection
    # Threads of one calculation wait for each other by spinning: beside other workers that makes
    # an engine's step forty times as long. Torch reads it when it is imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    _read_authorities_once()
    # Python ends at once on SIGTERM: the servers that the tests started would stay behind.
    signal.signal(signal.SIGTERM, lambda _number, _frame: pytest.exit("terminated", 143))
    # How long an example takes, or its making, says how busy the machine is.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("weir", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("weir")


def _read_authorities_once() -> None:
    """Has httpx's clients of this process share the certificates that each would read: 75 ms."""
    shared = functools.cache(httpx.create_ssl_context)
    transports.create_ssl_context = shared  # type: ignore[attr-defined] # private: no such seam


def pytest_collection_finish() -> None:
    """What lives to the end is not looked through again and again: a tenth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop where ``ON_UVLOOP`` says so, else asyncio's own."""
    if item.nodeid.startswith(ON_UVLOOP):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


class TogetherScheduling(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Gives each worker whole files, and whole folders of those whose tests share an engine.

    (Marks for ``--dist loadgroup`` have no effect with pytest 9.2: pytest-xdist#1386.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TogetherScheduling:
    """Tests that share a module's or a folder's servers run on one worker, in their order."""
    return TogetherScheduling(config, log)


def together(nodeid: str) -> str:
    """What a worker gets as a whole: a folder or a file, with everything that is in it."""
    path = nodeid.split("::", 1)[0]
    return next((folder for folder in FOLDERS if path.startswith(f"{folder}/")), path)


def shared(
    request: pytest.FixtureRequest,
    key: pytest.StashKey[T],
    make: Callable[[], AbstractContextManager[T]],
) -> T:
    """What ``make`` opens for all tests that a worker gets together; it ends with their last.

    A session's fixture would go on to its end: a server that stands idle slows the other workers.
    """
    scope = together(request.node.nodeid)
    chain: list[pytest.Item | pytest.Collector] = request.node.listchain()
    node = next(node for node in chain if node.nodeid == scope)
    if key not in node.stash:
        stack = ExitStack()
        node.stash[key] = stack.enter_context(make())
        stack.callback(node.stash.__delitem__, key)
        node.addfinalizer(stack.close)
    return node.stash[key]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Beside other workers what takes long begins."""
    if hasattr(config, "workerinput"):
        items.sort(key=_begins)


def _begins(item: pytest.Item) -> int:
    """Earlier with a lower number: folders, other engines, files with an API server, the rest."""
    scope = together(item.nodeid)
    if scope in FOLDERS:
        return FOLDERS.index(scope)
    if item.get_closest_marker("vllm") is not None:
        return len(FOLDERS)
    return len(FOLDERS) + (1 if item.get_closest_marker("kubernetes") is not None else 2)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL cluster for the whole run."""
    server = PostgresServer(memory_folder())
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


@pytest.fixture(scope="module")
def api_server(request: pytest.FixtureRequest) -> ApiServer:
    """An API server with its controllers and our CRDs, shared.

    A test that stops or pauses one of its processes starts it again before it ends.
    """
    return shared(request, API_SERVER, _api_server)


@contextmanager
def _api_server() -> Iterator[ApiServer]:
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
def own_api_server() -> Iterator[ApiServer]:
    """An API server that no other test has: its CRDs may be taken away."""
    with _api_server() as server:
        yield server


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
