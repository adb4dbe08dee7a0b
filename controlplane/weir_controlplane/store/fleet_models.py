"""The tables of the fleet: what agents said of themselves, and what is remembered of them.

As in `models`: times are seconds since 1970, and a change needs a migration.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from weir_controlplane.store.models import Base


class Death(Base):
    """A crash or hang of an engine, accepted once."""

    __tablename__ = "deaths"

    agent_id: Mapped[str] = mapped_column(primary_key=True)
    death_id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    solo: Mapped[bool]
    resident: Mapped[list[Any]]
    at: Mapped[float]


class Agent(Base):
    """What an agent last said of itself."""

    __tablename__ = "agents"

    agent_id: Mapped[str] = mapped_column(primary_key=True)
    service: Mapped[str] = mapped_column(index=True)
    incarnation: Mapped[int]  # the newest one
    state: Mapped[str]
    models: Mapped[list[Any]]
    room: Mapped[dict[str, Any]]
    telemetry: Mapped[dict[str, Any] | None]
    policy: Mapped[dict[str, Any] | None]  # the last one issued
    last_sync_at: Mapped[float]
    pause_until: Mapped[float | None]  # no chunks before (§8.5)
    pauses: Mapped[int] = mapped_column(default=0)  # in a row, without work committed between


class Incarnation(Base):
    """A process of an agent. The number is the incarnation; unique by boot id."""

    __tablename__ = "incarnations"
    __table_args__ = (UniqueConstraint("agent_id", "boot_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    agent_id: Mapped[str]
    boot_id: Mapped[str]
    sequence: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[float]


class ServedModel(Base):
    """A model that a service serves, or served: what a batch may name."""

    __tablename__ = "served_models"

    service: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[str] = mapped_column(primary_key=True)  # "" when the agent gave none
    max_model_len: Mapped[int | None]
    seen_at: Mapped[float]


class KvDemand(Base):
    """Online KV demand of one agent in one span of time: what the forecast is made from.

    Sums, so that replicas add to one row. Spans are 10 s (hours of them) and 10 min (days).
    """

    __tablename__ = "kv_demand"
    __table_args__ = (Index("ix_kv_demand_length_start", "length_s", "start_s"),)

    agent_id: Mapped[str] = mapped_column(primary_key=True)
    length_s: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    start_s: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    samples: Mapped[int]
    sum_blocks: Mapped[float]
    sum_sq_blocks: Mapped[float]
    max_blocks: Mapped[int]
