"""One cluster with Weir on it for the whole run; its logs are kept when anything fails."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from e2e.cluster.binaries import Binaries
from e2e.cluster.cluster import Cluster
from e2e.support.platform import Platform


def pytest_configure() -> None:
    # Python ends at once on SIGTERM: the cluster would stay behind.
    signal.signal(signal.SIGTERM, lambda _number, _frame: pytest.exit("terminated", 143))


@pytest.fixture(scope="session")
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """A cluster that has the images and volumes that Weir needs, and Weir installed."""
    cluster = Cluster(Binaries())
    done = False
    try:
        api, node = cluster.up()
        made = Platform(api, node)
        made.prepare()
        made.install()
        yield made
        done = request.session.testsfailed == 0
    finally:
        if not done:
            print(f"\nlogs of every component and pod: {cluster.keep_logs()}", file=sys.stderr)
        cluster.down()
