"""What replicas learn of agents from the database, whose clock may be set, on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import update

from weir_controlplane.agents.history import DemandLog
from weir_controlplane.agents.pods import PodPolicies
from weir_controlplane.agents.registry import ALIVE_S
from weir_controlplane.agents.schemas import ServedModel, SyncRequest
from weir_controlplane.agents.service import AgentService
from weir_controlplane.dispatch.errors import StaleSequenceError
from weir_controlplane.dispatch.incarnations import set_agents_right
from weir_controlplane.forecast.methods import default_methods
from weir_controlplane.policy.decide import PolicyLimits
from weir_controlplane.services import LocalNudge
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.fleet_models import Agent

HOUR_S = 3600.0


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
        models=[ServedModel(name="tiny", revision="")],
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


async def test_a_pod_that_died_while_the_clock_was_ahead_does_not_come_alive(
    database: Database,
) -> None:
    """Else it would run the suspects of its model, that is nobody, for as long as that was."""
    now_s = 1000.0
    here, elsewhere = (replica(database, lambda: now_s) for _ in range(2))
    for service, name in ((elsewhere, "a-dead"), (here, "b-alive")):
        first = (await service.sync(name, request(name, 1))).incarnation
        await service.sync(name, request(name, 2, first))
    await elsewhere.registry.write(database, now_s)
    async with database.transaction() as session:  # the clock is set back by an hour
        await session.execute(update(Agent).values(last_sync_at=db_now() + HOUR_S))

    alive = here.registry.entry("b-alive")
    for rounds in range(3):
        await here.registry.read(database, now_s)
        await set_agents_right(database)
        assert await set_agents_right(database) == 0
        await here.registry.read(database, now_s)
        now_s += ALIVE_S
        await here.sync("b-alive", request("b-alive", 3 + rounds, alive.incarnation))
        assert [item.agent_id for item in here.registry.alive(now_s)] == ["b-alive"]
        assert here.registry.suspects_of(alive, now_s, 0.0) == {"tiny"}
