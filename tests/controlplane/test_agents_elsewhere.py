"""Agents that sync now with one replica and now with another, on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir_controlplane.agents.history import DemandLog
from weir_controlplane.agents.pods import PodPolicies
from weir_controlplane.agents.schemas import SyncRequest
from weir_controlplane.agents.service import AgentService
from weir_controlplane.dispatch.errors import StaleSequenceError
from weir_controlplane.forecast.methods import default_methods
from weir_controlplane.policy.decide import PolicyLimits
from weir_controlplane.services import LocalNudge
from weir_controlplane.store.database import Database


def replica(database: Database, clock_s: Callable[[], float]) -> AgentService:
    log = DemandLog()
    policies = PodPolicies(log, methods=default_methods(), limits=PolicyLimits())
    return AgentService(
        database=database, nudge=LocalNudge(), policies=policies, log=log, clock_s=clock_s
    )


def request(boot_id: str, sequence: int, incarnation: int | None = None) -> SyncRequest:
    return SyncRequest(
        boot_id=boot_id,
        incarnation=incarnation,
        sequence=sequence,
        service="svc",
        state="serving",
    )


async def test_rule_12_a_process_that_began_elsewhere_counts_its_own_syncs(
    database: Database,
) -> None:
    """§8.12: this replica remembers how far its predecessor had counted."""
    now_s = 100.0
    here, elsewhere = (replica(database, lambda: now_s) for _ in range(2))
    first = (await here.sync("pod", request("boot-1", 1))).incarnation
    await here.sync("pod", request("boot-1", 50, first))
    now_s += 10  # more than this replica's own word is kept for
    second = (await elsewhere.sync("pod", request("boot-2", 1))).incarnation
    await elsewhere.registry.write(database, now_s)
    await here.registry.read(database, now_s)
    assert here.registry.entry("pod").incarnation == second > first
    assert (await here.sync("pod", request("boot-2", 2, second))).incarnation == second
    with pytest.raises(StaleSequenceError):  # and from here on it is counted
        await here.sync("pod", request("boot-2", 2, second))
