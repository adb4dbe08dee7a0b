"""One replica's agent service and the loops that keep it current."""

from __future__ import annotations

import asyncio
import random
import time

import structlog

from weir_controlplane.agents.announced import forget_models
from weir_controlplane.agents.history import DemandLog
from weir_controlplane.agents.metrics import PodGauges
from weir_controlplane.agents.pods import PodPolicies
from weir_controlplane.agents.queue import QueueGauges, fleet, reasons_of
from weir_controlplane.agents.service import CHUNKS_TOPIC, AgentService
from weir_controlplane.dispatch.bounds import WATCH_EVERY_S
from weir_controlplane.dispatch.incarnations import (
    forget_agents,
    forget_incarnations,
    set_agents_right,
)
from weir_controlplane.dispatch.sweep import sweep_uploads
from weir_controlplane.dispatch.watch import close_ending, expire_leases, revoke_halted, unpin
from weir_controlplane.eta.keeper import OutlookKeeper
from weir_controlplane.forecast.demand import BUCKET_S
from weir_controlplane.forecast.methods import default_methods
from weir_controlplane.policy.decide import PolicyLimits
from weir_controlplane.services import Services

BATCHES_TOPIC = "batches"
MIN_REFRESH_S = 0.2  # hints that come faster share one look at the database
PRESENCE_EVERY_S = 5.0
RENEW_EVERY_S = 2.0
TRIM_EVERY = 60  # flushes of the demand log
_log = structlog.get_logger(__name__)


class Runtime:
    """Holds the agent service of one application; `start` before anything else."""

    def __init__(self) -> None:
        self._agents: AgentService | None = None
        self._gauges = PodGauges()
        self._queue = QueueGauges()
        self._keeper: OutlookKeeper | None = None

    @property
    def agents(self) -> AgentService:
        """The agent service.

        Raises:
            RuntimeError: the application has not started.
        """
        if self._agents is None:
            raise RuntimeError("the agents component has not been started")
        return self._agents

    async def start(self, services: Services) -> None:
        """Makes the agent service and looks at the queue for the first time."""
        settings = services.settings
        log = DemandLog()
        policies = PodPolicies(
            log,
            methods=default_methods(sigmas=settings.forecast_sigmas),
            limits=PolicyLimits(
                max_offline_fraction=settings.max_offline_kv_fraction,
                fresh_fraction=settings.fresh_offline_kv_fraction,
                max_reuse_fraction=settings.max_online_reuse_kv_fraction,
                max_offline_slots=settings.max_offline_slots,
            ),
        )
        self._agents = AgentService(
            database=services.database,
            nudge=services.nudge,
            policies=policies,
            log=log,
            default_tenant=settings.default_tenant,
        )
        await self._refresh()
        await self._agents.registry.read(services.database, time.monotonic())

    async def refresh_forever(self, services: Services) -> None:
        """Keeps the view of the queue current: after hints, and every ``poll_s`` without any."""
        while True:
            await services.nudge.wait(CHUNKS_TOPIC, services.settings.poll_s)
            await self._refresh()
            await asyncio.sleep(MIN_REFRESH_S)

    async def _refresh(self) -> None:
        agents = self.agents
        agents.time.read(await agents.view.refresh(agents.database))

    async def watch_forever(self, services: Services) -> None:
        """Ends leases that have run out and the chunks of batches that end."""
        while True:
            await set_agents_right(services.database)
            await revoke_halted(services.database)
            opened = await expire_leases(services.database)
            freed = await unpin(services.database, self._without_revision())
            if opened or freed:
                await services.nudge.send(CHUNKS_TOPIC)
            if await close_ending(services.database):
                await services.nudge.send(BATCHES_TOPIC)
            await asyncio.sleep(WATCH_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311

    def _without_revision(self) -> list[str]:
        agents = self.agents
        pods = fleet(agents.registry, agents.clock_s(), agents.time.now_s())
        pinned = [item for item in agents.view.batches.values() if item.revision is not None]
        reasons = reasons_of(agents, pinned, pods)
        return [batch_id for batch_id, reason in reasons.items() if reason == "RevisionGone"]

    async def renew_forever(self, services: Services) -> None:
        """Renews the leases of the agents that sync here."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await self.agents.registry.renew(services.database, self.agents.clock_s())

    async def presence_forever(self, services: Services) -> None:
        """Writes what agents said, and learns what they said elsewhere."""
        while True:
            await asyncio.sleep(PRESENCE_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311
            agents = self.agents
            await agents.registry.write(services.database, agents.clock_s())
            await agents.registry.read(services.database, agents.clock_s())
            alive = list(agents.registry.alive(agents.clock_s()))
            await self._gauges.update(alive)
            self._queue.update(agents)

    async def outlook_forever(self, services: Services) -> None:
        """Keeps what is expected of running batches current."""
        # The same after an outage, which ends the task: it knows what it has shown.
        self._keeper = self._keeper or OutlookKeeper(
            services.outlook, chunk_tokens=services.settings.chunk_tokens
        )
        while True:
            await self._keeper.update(self.agents)
            await asyncio.sleep(services.settings.poll_s)

    async def demand_forever(self, services: Services) -> None:
        """Writes the demand log, reads what others wrote, and trims it."""
        flushes = 0
        while True:
            await asyncio.sleep(BUCKET_S)
            agents = self.agents
            await agents.log.flush(services.database)
            if services.database.dialect == "postgresql":
                await agents.log.read_others(services.database, agents.time.now_s())
            agents.log.forget_except(set(agents.registry.agents))
            flushes += 1
            if flushes % TRIM_EVERY == 0:
                await agents.log.trim(services.database, agents.time.now_s())

    async def sweep_forever(self, services: Services) -> None:
        """Removes results that nobody can commit, agents that are long gone, and their models."""
        while True:
            await asyncio.sleep(services.settings.sweep_s * random.uniform(0.8, 1.2))  # noqa: S311
            await forget_agents(services.database)
            await forget_incarnations(services.database)
            await forget_models(services.database)
            await sweep_uploads(services.database, services.storage)
