"""What an operator that begins says of a control plane that has not answered it yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from fastapi import FastAPI, Request

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.operator.runtime.test_operator import condition, llmservice
from tests.support.operator_process import PATIENT_LEASE, OperatorProcess
from tests.support.serving import serve_in_thread
from tests.support.virtual_time import run_virtual
from tests.support.waiting import eventually
from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.store import ObjectStore
from weir_operator.control_plane.client import (
    ControlPlaneClient,
    ControlPlaneError,
    HeardJob,
    HeardService,
)
from weir_operator.control_plane.progress import Pace, Progress
from weir_operator.control_plane.reports import ReportBook
from weir_operator.main import FIRST_ANSWER_S, act
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.types import ObjectKey
from weir_operator.workqueue import QueueTerms, WorkQueue

TERMS = QueueTerms(workers=4, rate_per_s=99, backoff_first_s=1, backoff_most_s=30, timeout_s=60)


class ControlPlane:
    """Knows nothing of anybody, and says so after a while, or says an error."""

    def __init__(self, *, after_s: float, error: ControlPlaneError | None = None) -> None:
        self.after_s = after_s
        self.error = error

    async def jobs(self) -> list[HeardJob]:
        """None."""
        await asyncio.sleep(self.after_s)
        if self.error is not None:
            raise self.error
        return []

    async def services(self) -> list[HeardService]:
        """None."""
        return []


def first_reconcile(plane: ControlPlane) -> tuple[float, bool]:
    """After how many seconds an operator begins, and whether it knows the control plane then."""

    async def main(clock: Callable[[], float]) -> tuple[float, bool]:
        began_s = clock()
        seen: list[tuple[float, bool]] = []
        reports = ReportBook(lambda _: None, on_reached=lambda: None, clock=clock)
        progress = Progress(
            cast("ControlPlaneClient", plane),
            reports,
            ObjectStore(lambda _: None),
            cast("ClusterApi", None),  # never asked: there is nothing that could be orphaned
            pace=Pace(interval_s=5, namespaces=(), clock=clock, random=Random(1)),  # noqa: S311
            metrics=OperatorMetrics(),
        )

        async def work(_key: ObjectKey) -> None:
            seen.append((clock() - began_s, reports.reached))

        queue = WorkQueue(work, TERMS, clock=clock, random=Random(1))  # noqa: S311
        queue.add(ObjectKey(kind="LLMService", namespace="team", name="chat"))
        task = asyncio.create_task(act(queue, progress))
        await asyncio.sleep(60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        [found] = seen
        return found

    return run_virtual(main)


def test_reconciles_begin_when_the_control_plane_has_answered() -> None:
    began_s, reached = first_reconcile(ControlPlane(after_s=2.0))
    assert reached
    assert began_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("plane", "begins_s"),
    [
        (ControlPlane(after_s=1.0, error=ControlPlaneError("GET: ConnectError")), 1.0),
        (ControlPlane(after_s=3600.0), FIRST_ANSWER_S),
    ],
    ids=["away", "hangs"],
)
def test_a_control_plane_that_does_not_answer_holds_nothing_up_for_long(
    plane: ControlPlane, begins_s: float
) -> None:
    began_s, reached = first_reconcile(plane)
    assert not reached
    assert began_s == pytest.approx(begins_s)


def slow(after_s: float) -> FastAPI:
    """A control plane that takes its time to say what it knows: what it was told of services."""
    app = FastAPI()
    services: dict[str, dict[str, Any]] = {}

    @app.get("/internal/v1/batchjobs")
    async def batchjobs() -> dict[str, Any]:
        await asyncio.sleep(after_s)
        return {"data": [], "has_more": False, "last_uid": None}

    @app.get("/internal/v1/services")
    async def known() -> dict[str, Any]:
        return {"data": list(services.values())}

    @app.put("/internal/v1/services/{namespace}/{name}")
    async def register(namespace: str, name: str, request: Request) -> dict[str, Any]:
        said = await request.json()
        figures = {"slo_attainment": None, "policy_fresh": None, "offline_tokens_per_s": 0.0}
        services[name] = {**said, **figures, "namespace": namespace, "name": name}
        return services[name]

    return app


@pytest.mark.kubernetes
def test_a_start_tells_of_no_control_plane_that_is_gone(
    api_server: ApiServer, namespace: str, kubectl: Kubectl, tmp_path: Path
) -> None:
    kubectl.apply(llmservice(replicas=0))  # no pods, of which the answer would have to tell
    with serve_in_thread(slow(2.0)) as url:
        operator = OperatorProcess(
            "operator-0",
            tmp_path,
            kubeconfig=api_server.kubeconfig,
            namespace=namespace,
            control_plane_url=url,
            settings=PATIENT_LEASE,
        )
        try:
            operator.start()
            registered = partial(condition, kubectl, "llmservice", "chat", "Registered")
            assert eventually(lambda: registered().get("status") == "True"), operator
        finally:
            operator.close()
    unreachable = "--field-selector=reason=ControlPlaneUnreachable"
    assert kubectl.list("events", unreachable) == []
