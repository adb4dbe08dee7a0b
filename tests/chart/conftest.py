"""The real helm, and the chart rendered once for each set of values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.binaries import Binaries
from tests.chart.chart import EVERYTHING, MONITORING, VALUES, Helm, Manifest


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm without a cluster."""
    return Helm(binary=Binaries().provide("helm"), folder=tmp_path_factory.mktemp("helm"))


@pytest.fixture
def cluster_helm(helm: Helm, api_server: ApiServer, tmp_path: Path) -> Helm:
    """helm on the tests' API server."""
    return Helm(binary=helm.binary, folder=tmp_path, kubeconfig=api_server.kubeconfig)


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> Mapping[str, list[Manifest]]:
    """The chart by the name of its values."""
    return {
        name: helm.render(values, apis=[MONITORING] if values is EVERYTHING else [])
        for name, values in VALUES.items()
    }
