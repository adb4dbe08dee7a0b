"""One running batch in a replica's view of the queue, and the pod that may get its chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir_controlplane.dispatch.order import Waiting
from weir_controlplane.dispatch.placement import OpenChunk, Place, Room
from weir_controlplane.store.tenancy import Bindings


@dataclass(frozen=True, kw_only=True, slots=True)
class Out:
    """A leased chunk. ``holder`` is an incarnation."""

    chunk_id: str
    place: Place
    holder: int
    tokens: int
    solo: bool
    leased_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A pod that asks for work. ``models``: revision by name.

    ``suspects_of``: the models whose suspects run on it and on no other pod of its service.
    ``held``: how many chunks it has.
    """

    incarnation: int
    service: str
    models: Mapping[str, str]
    room: Room
    suspects_of: frozenset[str]
    holds_solo: bool
    held: int = 0


@dataclass(kw_only=True, slots=True)
class BatchView:
    """A running batch. ``open`` by place, those that run alone in ``solo``.

    ``stale``: some of ``open`` or ``solo`` were not to be had. ``input_missing``: the file store
    said so, and until it says otherwise no pod gets its chunks.
    """

    batch_id: str
    tenant_id: str
    model: str
    revision: str | None
    service: str | None
    created_at: float
    expires_at: float
    waiting_since: float
    priority: int = 0
    input_missing: bool = False
    open_lines: int = 0
    open_count: int = 0
    solo_count: int = 0
    stale: bool = False
    open: list[OpenChunk] = field(default_factory=list)
    solo: list[OpenChunk] = field(default_factory=list)
    out: dict[str, Out] = field(default_factory=dict)

    def waiting(self) -> Waiting:
        """Its place in the queue."""
        return Waiting(
            batch_id=self.batch_id,
            tenant_id=self.tenant_id,
            created_at=self.created_at,
            expires_at=self.expires_at,
            waiting_since=self.waiting_since,
            priority=self.priority,
        )

    def fits(self, pod: Pod, bindings: Bindings) -> bool:
        """Whether the pod could run it: model and revision, service, tenant, and lines to read."""
        revision = pod.models.get(self.model)
        return (
            not self.input_missing
            and revision is not None
            and self.revision in {None, revision}
            and self.service in {None, pod.service}
            and bindings.may_use(self.tenant_id, pod.service)
        )
