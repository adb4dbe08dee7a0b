"""What an operator takes for known of a BatchJob, by what the control plane says when asked."""

from __future__ import annotations

from typing import cast

import pytest

from tests.operator.planning.worlds import DEFAULTS, batchjob, condition, message
from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.store import ObjectStore
from weir_operator.control_plane.client import ControlPlaneClient, ControlPlaneError
from weir_operator.control_plane.reports import ReportBook
from weir_operator.planning.batchjob import plan_batchjob
from weir_operator.planning.kinds import BATCH_JOB, FINALIZER
from weir_operator.planning.types import ObjectKey, Plan
from weir_operator.reconcile.observe import Observer, ObserverTerms


class ControlPlane:
    """Says the same of every BatchJob: that it knows none, or an error."""

    def __init__(self, error: ControlPlaneError | None) -> None:
        self.error = error

    async def job(self, _uid: str) -> None:
        """None, or the error."""
        if self.error is not None:
            raise self.error


async def plan_of_a_batch_that_no_list_has(error: ControlPlaneError | None) -> Plan:
    """One that was made: its id is in the status."""
    job = batchjob()
    job["metadata"]["finalizers"] = [FINALIZER]
    job["status"] = {"batchID": "batch_1", "model": "chat"}
    store = ObjectStore(lambda _: None)
    store.seen(BATCH_JOB, job)
    reports = ReportBook(lambda _: None, on_reached=lambda: None, clock=lambda: 0.0)
    reports.reach(answered=True)
    reports.heard_all([], [], asked_at_s=0.0)
    observer = Observer(
        store,
        reports,
        cast("ClusterApi", None),
        cast("ControlPlaneClient", ControlPlane(error)),
        terms=ObserverTerms(defaults=DEFAULTS, finalizer_deadline_s=60),
        clock=lambda: 1.0,
    )
    metadata = job["metadata"]
    key = ObjectKey(kind="BatchJob", namespace=metadata["namespace"], name=metadata["name"])
    observed = await observer.batchjob(key)
    assert observed is not None
    return plan_batchjob(observed)


@pytest.mark.parametrize(
    "error",
    [
        ControlPlaneError("the token has expired", status=401, code="invalid_api_key"),
        ControlPlaneError("Not Found", status=404, code="http_404"),  # of a proxy before it
        ControlPlaneError("GetBatchJob: the answer is not JSON", code="unreadable_answer"),
        ControlPlaneError("GET: ConnectError"),
    ],
    ids=lambda error: error.code or "no answer",
)
async def test_a_batch_is_not_lost_because_nobody_says_that_it_is_there(
    error: ControlPlaneError,
) -> None:
    plan = await plan_of_a_batch_that_no_list_has(error)
    assert condition(plan.status, "Failed")[0] == "False"
    assert plan.finalizer is None
    assert plan.requeue_after_s is not None


async def test_a_batch_that_the_control_plane_says_it_has_not_is_lost() -> None:
    plan = await plan_of_a_batch_that_no_list_has(None)
    assert condition(plan.status, "Failed") == ("True", "BatchNotFound")
    assert "batch_1" in message(plan.status, "Failed")
