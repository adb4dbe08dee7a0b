"""One cluster with Weir on it for the whole run; its logs are kept when anything fails."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e.cluster.binaries import Binaries
from e2e.cluster.cluster import Cluster
from e2e.support.platform import Platform, build_images

ORDER = (
    "test_cluster",
    "test_path",
    "test_security",
    "test_operator",
    "test_faults",
    "test_release",
)
"""Files in the order of a release's life: the last one takes it away."""
TIMEOUT_S = 1200
"""Of a test with its fixtures: the first one builds images and starts everything."""
CLUSTER = pytest.StashKey[Cluster]()


def pytest_configure() -> None:
    # Python ends at once on SIGTERM: the cluster would stay behind.
    signal.signal(signal.SIGTERM, lambda _number, _frame: pytest.exit("terminated", 143))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.stem in ORDER else -1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = item.config.stash.get(CLUSTER, None)
    if report.failed and cluster is not None:  # now: pods take their logs along when they go
        kept = cluster.keep_logs()
        report.sections += [
            (f"logs of every component and pod ({call.when})", str(kept)),
            (f"pods and warnings ({call.when})", cluster.summary()),
        ]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests measured, also when they passed."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")


@pytest.fixture(scope="session")
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """A cluster that has the images and volumes that Weir needs, and Weir installed."""
    archives = build_images()
    cluster = request.config.stash[CLUSTER] = Cluster(Binaries())
    try:
        made = Platform(*cluster.up())
        made.prepare(archives)
        made.install()
        yield made
    except BaseException:
        print(f"\nlogs of every component and pod: {cluster.keep_logs()}", file=sys.stderr)
        raise
    finally:
        del request.config.stash[CLUSTER]
        cluster.down()


@pytest.fixture(scope="session")
def service(platform: Platform) -> Platform:
    """The platform with an LLMService whose replicas all serve."""
    platform.serve()
    platform.settled()
    return platform


@pytest.fixture(scope="session")
def key(platform: Platform) -> str:
    """A key of the tenant that owns the namespace `shop`."""
    return platform.tenant_key()
