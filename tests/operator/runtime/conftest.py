"""What tests of a running operator share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.api_server import ApiServer
from tests.support.operator_process import PATIENT_LEASE, OperatorProcess


@pytest.fixture(scope="module")
def operator(
    api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all namespaces."""
    folder = tmp_path_factory.mktemp("operator")
    process = OperatorProcess(
        "operator-0", folder, kubeconfig=api_server.kubeconfig, settings=PATIENT_LEASE
    )
    process.start()
    yield process
    process.close()
