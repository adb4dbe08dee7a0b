"""Weir's own kinds are deleted and come back: the operator says so, and watches them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer
from tests.operator.runtime.test_operator import llmservice
from tests.support.operator_process import PATIENT_LEASE, OperatorProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.kubernetes
CRDS = Path(__file__).parents[3] / "crds"


def test_kinds_that_come_back_are_watched_again(own_api_server: ApiServer, tmp_path: Path) -> None:
    """Kopf leaves out what it does not find at its start: changes waited for the next full list."""
    operator = OperatorProcess(
        "operator-0",
        tmp_path,
        kubeconfig=own_api_server.kubeconfig,
        namespace="default",
        settings=PATIENT_LEASE,
    )
    kubectl = own_api_server.kubectl.inside("default")
    try:
        operator.start()
        for plural in ("llmservices", "batchjobs"):
            kubectl.run("delete", "crd", f"{plural}.weir.dev", "--timeout=110s")
        assert eventually(lambda: "apply Weir's CRDs" in operator.get("readyz")), operator
        own_api_server.apply_crds(CRDS)
        assert eventually(operator.ready), operator
        kubectl.apply(llmservice())
        assert eventually(lambda: kubectl.get("deployment", "chat")), operator
    finally:
        operator.close()
