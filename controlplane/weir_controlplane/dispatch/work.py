"""What crosses the border of dispatch: a sync's durable part, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

AgentState = Literal["starting", "serving", "draining", "engine_down", "disk_full"]
CancelReason = Literal["cancelled", "expired", "suspects", "suspended"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRef:
    """A lease as its holder names it."""

    chunk_id: str
    attempt: int
    nonce: str
    lines_done: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedDeath:
    """An engine that died. ``resident``: chunk id, attempt and line of each offline line in it."""

    death_id: str
    kind: str
    solo: bool
    resident: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A model that an agent serves; ``revision`` is empty when it knows none."""

    name: str
    revision: str
    max_model_len: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncWork:
    """A sync as the database needs it. ``wanted``: open chunks to lease, chosen from the view.

    ``most_lines``: all that the agent can store results of; a longer chunk is cut to so many.
    ``default_tenant``: the name of the tenant that has the namespaces which nobody is bound to.
    """

    agent_id: str
    boot_id: str
    incarnation: int | None
    sequence: int
    service: str
    models: tuple[Served, ...]
    state: AgentState
    held: tuple[LeaseRef, ...] = ()
    returned: tuple[LeaseRef, ...] = ()
    deaths: tuple[ReportedDeath, ...] = ()
    wanted: tuple[str, ...] = ()
    most_lines: int | None = None
    default_tenant: str | None = None

    def revision_of(self, model: str | None) -> str | None:
        """The revision that the agent serves of a model; None when it does not serve it."""
        return next((item.revision for item in self.models if item.name == model), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """A lease handed out. ``deadline_s``: seconds until its batch expires."""

    chunk_id: str
    attempt: int
    nonce: str
    batch_id: str
    tenant_id: str
    model: str
    revision: str
    endpoint: str
    position: int
    lines: int
    bytes: int
    tokens: int
    density: float
    prefix_group: str
    deadline_s: float
    solo: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """A lease that the database says an agent has."""

    batch_id: str
    attempt: int
    nonce: str
    solo: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """What a sync came to. ``holds``: every lease of the incarnation after it, by chunk."""

    incarnation: int
    paused_until: float | None
    now_s: float
    grants: tuple[Grant, ...] = ()
    adopted: tuple[Grant, ...] = ()
    lost: tuple[str, ...] = ()
    cancel: tuple[tuple[str, CancelReason], ...] = ()
    deaths_accepted: tuple[str, ...] = ()
    holds: Mapping[str, Holding] = field(default_factory=dict)
    released: int = 0  # chunks that are open again
