"""The agents as this replica knows them: what keeps a sync from needing the database each time.

Only hints: whatever counts is checked in the database when leases move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Double, bindparam, select, update

from weir_controlplane.agents.schemas import Room, SyncRequest, Telemetry
from weir_controlplane.dispatch.bounds import RENEW_AFTER_S
from weir_controlplane.dispatch.watch import renew_leases
from weir_controlplane.dispatch.work import CancelReason, Holding
from weir_controlplane.forecast.choose import Forecast, Score
from weir_controlplane.policy.decide import Policy
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.fleet_models import Agent

ALIVE_S = 30.0  # without a sync for so long an agent is not counted as one that works
FORGET_S = 900.0
CROWDED_S = 60.0  # an agent without offline slots for so long is more than a burst of requests
NEWS_S = 0.5  # what the database knows later than this replica by less is this replica's own word
_SLICE_ROWS = 100  # between two of them, syncs are answered


@dataclass(kw_only=True, slots=True)
class AgentEntry:
    """One agent. ``holds`` are its leases by chunk; times ``_at`` are on the replica's clock."""

    agent_id: str
    service: str = ""
    incarnation: int = 0
    boot_id: str = ""
    sequence: int = 0
    state: str = "starting"
    models: Mapping[str, str] = field(default_factory=dict)
    room: Room = field(default_factory=Room)
    telemetry: Telemetry | None = None
    policy: Policy | None = None
    forecast: Forecast | None = None
    scores: tuple[Score, ...] = ()
    holds: dict[str, Holding] = field(default_factory=dict)
    cancels: Mapping[str, CancelReason] = field(default_factory=dict)  # as last settled
    paused_until: float | None = None
    renewed_at: float = float("-inf")  # when its leases last got a whole length
    forecast_at: float = float("-inf")
    scored_at: float = float("-inf")
    seen_at: float = float("-inf")
    had_slots_at: float = float("-inf")
    local: bool = False  # it syncs here
    written: bool = True  # the database knows what is here
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def may_run(self) -> bool:
        """Whether batch lines may run there, by the policy that it was told last."""
        return self.policy is None or self.policy.offline_seq_slots > 0

    def is_crowded(self, now_s: float) -> bool:
        """Whether no batch line may run there, and could not for a while."""
        return not self.may_run and now_s - self.had_slots_at >= CROWDED_S

    def note(self, request: SyncRequest, now_s: float) -> None:
        """Takes over what the agent says of itself."""
        if self.may_run:
            self.had_slots_at = now_s
        self.service = request.service
        self.sequence = request.sequence
        self.boot_id = request.boot_id
        self.state = request.state
        self.models = {model.name: model.revision for model in request.models}
        self.room = request.room
        self.telemetry = request.telemetry or self.telemetry
        self.seen_at = now_s
        self.local = True
        self.written = False


class Registry:
    """Every agent that this replica has heard of."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentEntry] = {}

    def entry(self, agent_id: str) -> AgentEntry:
        """The entry of an agent, a new one when there is none."""
        known = self.agents.get(agent_id)
        if known is None:
            known = self.agents[agent_id] = AgentEntry(agent_id=agent_id)
        return known

    def alive(self, now_s: float) -> Iterable[AgentEntry]:
        """The agents that have synced lately, here or elsewhere."""
        return (item for item in self.agents.values() if now_s - item.seen_at < ALIVE_S)

    def suspects_of(self, entry: AgentEntry, now_s: float, db_now_s: float) -> frozenset[str]:
        """The models whose suspects this pod runs (§8.5).

        It is the first by id of the pods of its service that serve them in its revision, may run
        batch lines now, and have room: one that found that what it has does not fit says so there.
        """
        before = [
            item
            for item in self.alive(now_s)
            if item.agent_id < entry.agent_id
            and item.service == entry.service
            and item.state == "serving"
            and item.may_run
            and item.room.lines > 0
            and (item.paused_until is None or item.paused_until <= db_now_s)
        ]
        return frozenset(
            name
            for name, revision in entry.models.items()
            if not any(item.models.get(name) == revision for item in before)
        )

    async def renew(self, database: Database, now_s: float) -> int:
        """Renews the leases of agents that sync here, many in one transaction; their number.

        An agent of which one lease could not be renewed keeps its old time: its next syncs ask
        the database, which knows what is lost.
        """
        due = [
            item
            for item in self.agents.values()
            if item.local
            and item.holds
            and now_s - item.renewed_at >= RENEW_AFTER_S
            and now_s - item.seen_at < RENEW_AFTER_S / 2
        ]
        renewed = 0
        for start in range(0, len(due), _SLICE_ROWS):
            part = due[start : start + _SLICE_ROWS]
            nonces = {key: hold.nonce for item in part for key, hold in item.holds.items()}
            done = await renew_leases(database, nonces)
            renewed += len(done)
            for item in part:
                if done.issuperset(item.holds):
                    item.renewed_at = now_s
            await asyncio.sleep(0)
        return renewed

    async def write(self, database: Database, now_s: float) -> int:
        """Writes what agents said since the last time; the number of agents."""
        changed = [item for item in self.agents.values() if not item.written and item.incarnation]
        for start in range(0, len(changed), _SLICE_ROWS):
            part = changed[start : start + _SLICE_ROWS]
            rows = [_row(item, now_s) for item in part]
            for item in part:
                item.written = True
            try:
                await _write(database, rows)
            except BaseException:
                for item in part:
                    item.written = False
                raise
            await asyncio.sleep(0)
        return len(changed)

    async def read(self, database: Database, now_s: float) -> None:
        """Learns of agents that sync elsewhere, and forgets those that are long gone."""
        age = db_now() - Agent.last_sync_at
        async with database.read() as session:
            # What the other columns hold takes long to decode, and most agents sync here.
            brief = select(Agent.agent_id, Agent.incarnation, age.label("age_s"))
            rows = (await session.execute(brief.where(age < FORGET_S))).all()
        elsewhere = [row.agent_id for row in rows if self._is_news(row, now_s)]
        for start in range(0, len(elsewhere), _SLICE_ROWS):
            await self._read_whole(database, elsewhere[start : start + _SLICE_ROWS], now_s)
        gone = [key for key, item in self.agents.items() if now_s - item.seen_at > FORGET_S]
        for key in gone:
            del self.agents[key]

    def _is_news(self, row: Any, now_s: float) -> bool:  # noqa: ANN401 - a row
        if row.age_s < -ALIVE_S:
            return False  # of a clock that was ahead: one that lives writes its own again
        entry = self.entry(row.agent_id)
        later_s = now_s - row.age_s - entry.seen_at
        return bool(row.incarnation >= entry.incarnation and later_s > NEWS_S)

    async def _read_whole(self, database: Database, agent_ids: list[str], now_s: float) -> None:
        columns: tuple[Any, ...] = (
            *(Agent.agent_id, Agent.service, Agent.incarnation, Agent.state),
            *(Agent.models, Agent.room, Agent.telemetry, Agent.policy, Agent.pause_until),
            (db_now() - Agent.last_sync_at).label("age_s"),
        )
        async with database.read() as session:
            statement = select(*columns).where(Agent.agent_id.in_(agent_ids))
            rows = (await session.execute(statement)).all()
        for row in rows:
            if self._is_news(row, now_s):
                self._take_over(self.entry(row.agent_id), row, now_s)

    @staticmethod
    def _take_over(entry: AgentEntry, row: Any, now_s: float) -> None:  # noqa: ANN401 - a row
        if row.incarnation != entry.incarnation:
            # Its predecessor's sequence may be far above its own.
            entry.boot_id, entry.sequence = "", 0
            entry.holds, entry.cancels = {}, {}
            entry.renewed_at = float("-inf")
        entry.incarnation = row.incarnation
        entry.service, entry.state = row.service, row.state
        entry.models = {item["name"]: item.get("revision", "") for item in row.models}
        entry.room = Room.model_validate(row.room)
        if row.telemetry is not None:
            entry.telemetry = Telemetry.model_validate(row.telemetry)
        if entry.may_run:
            entry.had_slots_at = now_s
        if row.policy is not None:
            entry.policy = policy_of(row.policy)
        entry.paused_until = row.pause_until
        entry.seen_at = now_s - row.age_s
        entry.local = False


def _row(entry: AgentEntry, now_s: float) -> dict[str, Any]:
    return {
        "b_id": entry.agent_id,
        "b_incarnation": entry.incarnation,
        "b_age_s": max(0.0, now_s - entry.seen_at),
        "service": entry.service,
        "state": entry.state,
        "models": [{"name": name, "revision": value} for name, value in entry.models.items()],
        "room": entry.room.model_dump(),
        "telemetry": None if entry.telemetry is None else entry.telemetry.model_dump(),
        "policy": None if entry.policy is None else policy_view(entry.policy),
    }


def policy_view(policy: Policy) -> dict[str, Any]:
    """A policy as it travels."""
    return {
        "lease_s": policy.lease_s,
        "offline_kv_blocks": policy.offline_kv_blocks,
        "offline_seq_slots": policy.offline_seq_slots,
        "step_budget_s": policy.step_budget_s,
        "forecast": {"method": policy.method, "online_kv_blocks": policy.forecast_blocks},
    }


def policy_of(view: Mapping[str, Any]) -> Policy:
    """The policy of a view."""
    return Policy(
        lease_s=view["lease_s"],
        offline_kv_blocks=view["offline_kv_blocks"],
        offline_seq_slots=view["offline_seq_slots"],
        step_budget_s=view["step_budget_s"],
        method=view["forecast"]["method"],
        forecast_blocks=view["forecast"]["online_kv_blocks"],
    )


async def _write(database: Database, rows: list[dict[str, Any]]) -> None:
    async with database.transaction() as session:
        await (await session.connection()).execute(
            update(Agent)
            .where(
                Agent.agent_id == bindparam("b_id"),
                Agent.incarnation == bindparam("b_incarnation"),
            )
            .values(last_sync_at=db_now() - bindparam("b_age_s", type_=Double())),
            sorted(rows, key=lambda row: str(row["b_id"])),
        )
