"""Plans one BatchJob."""

from __future__ import annotations

from weir_operator.planning.observed import ObservedBatchJob
from weir_operator.planning.types import Plan


def plan_batchjob(observed: ObservedBatchJob) -> Plan:
    """What the BatchJob should have."""
    if observed.job["metadata"].get("deletionTimestamp"):
        return Plan()
    return Plan()
