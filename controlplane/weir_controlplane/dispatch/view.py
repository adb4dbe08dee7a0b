"""What a replica knows of the queue, in memory: plans are made here, the database carries them out.

Refreshed every few seconds and after hints. A plan from a stale view costs a lease that is not
granted, nothing else: every lease is a conditional update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from weir_controlplane.dispatch.batch_view import BatchView, Out, Pod
from weir_controlplane.dispatch.bounds import MAX_GIVEN_CHUNKS, SLICE_CHUNKS
from weir_controlplane.dispatch.order import Turns
from weir_controlplane.dispatch.placement import OpenChunk, Place, Room, next_chunk
from weir_controlplane.dispatch.queue_reader import read_queue
from weir_controlplane.dispatch.work import CancelReason, Grant
from weir_controlplane.store.database import Database
from weir_controlplane.store.tenancy import Bindings


class WorkView:
    """The queue as this replica last saw it."""

    def __init__(self, *, default_tenant: str | None = None) -> None:
        self.batches: dict[str, BatchView] = {}
        self.bindings = Bindings()
        self.ending: dict[str, CancelReason] = {}  # by batch; those that are only halted too
        self.revoked: frozenset[str] = frozenset()
        self._last: dict[tuple[int, str], Place] = {}
        self._planned: dict[str, str] = {}  # the batches of chunks that are being leased
        self._default_tenant = default_tenant

    async def refresh(self, database: Database) -> float:
        """Reads the queue anew; the database's time at that moment."""
        queue = await read_queue(database, self.batches, default_tenant=self._default_tenant)
        self.batches, self.ending = queue.batches, queue.ending
        self.bindings, self.revoked = queue.bindings, queue.revoked
        self._last = {key: place for key, place in self._last.items() if key[1] in self.batches}
        return queue.now_s

    def has_work(self, pod: Pod) -> bool:
        """Whether there is anything that the pod could get now."""
        return any(
            (batch.open or batch.solo) and batch.fits(pod, self.bindings)
            for batch in self.batches.values()
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all waits."""
        return not any(batch.open or batch.solo for batch in self.batches.values())

    @property
    def has_suspects(self) -> bool:
        """Whether chunks of suspects wait."""
        return any(batch.solo for batch in self.batches.values())

    def plan(self, pod: Pod, now_s: float) -> list[str]:
        """Chunks to lease to the pod, in order; they leave the view at once.

        A pod that takes suspects gets nothing else while any wait, and one chunk of them when it
        holds nothing (§8.5). A chunk whose results its disk cannot take is cut when it is leased:
        the view has the rest when it is read again.
        """
        if pod.holds_solo:
            return []
        fitting = [batch for batch in self.batches.values() if batch.fits(pod, self.bindings)]
        suspected = [batch for batch in fitting if batch.model in pod.suspects_of]
        if any(batch.solo for batch in suspected):
            return self._plan_solo(pod, suspected)
        return self._plan_slices(pod, fitting, now_s)

    def _plan_solo(self, pod: Pod, suspected: Iterable[BatchView]) -> list[str]:
        if not pod.room.idle or self._solo_out(suspected):
            return []
        for batch in suspected:
            for chunk in batch.solo:
                part = pod.room.part_of(chunk)
                if part is not None and pod.room.fits(part):
                    batch.solo.remove(chunk)
                    self._planned[chunk.chunk_id] = batch.batch_id
                    return [chunk.chunk_id]
        return []

    @staticmethod
    def _solo_out(suspected: Iterable[BatchView]) -> bool:
        return any(item.solo for batch in suspected for item in batch.out.values())

    def _plan_slices(self, pod: Pod, fitting: Sequence[BatchView], now_s: float) -> list[str]:
        tokens, served = self._shares(fitting)
        turns = Turns(
            (batch.waiting() for batch in fitting if batch.open),
            now_s,
            leased_tokens=tokens,
            served=served,
        )
        chosen: list[str] = []
        room = pod.room
        # Looking for a place costs more than all else that a sync does.
        while not room.is_full and pod.held + len(chosen) < MAX_GIVEN_CHUNKS:
            first = turns.first()
            if first is None:
                break
            batch = self.batches[first.batch_id]
            taken = self._plan_slice(pod, batch, room, now_s)
            if taken is None:
                # A busy pod's room comes back line by line: batches of smaller chunks
                # would take all of it before it is enough for this one.
                break
            if not taken:
                turns.passes()
                continue
            for part in taken:
                room = room.less(part)
            turns.took(sum(part.tokens for part in taken), has_more=bool(batch.open))
            chosen += [chunk.chunk_id for chunk in taken]
        return chosen

    def _plan_slice(
        self, pod: Pod, batch: BatchView, room: Room, now_s: float
    ) -> list[OpenChunk] | None:
        """What the pod takes of the batch; None: it keeps its room until a chunk of it fits."""
        taken: list[OpenChunk] = []
        others = sorted(item.place for item in batch.out.values() if item.holder != pod.incarnation)
        while len(taken) < SLICE_CHUNKS and not room.is_full:
            chunk = self._next(pod.incarnation, batch, others)
            if chunk is None:
                break
            # Cut only to what the pod says: what is left of it in this sync may be a line.
            part = chunk if room.has_disk_for(chunk) else None
            if part is None and room == pod.room:
                part = room.part_of(chunk)
            if part is None:
                break
            if not room.fits(part):
                return taken or None
            self._take(pod.incarnation, batch, chunk, now_s)
            taken.append(part)
            room = room.less(part)
        return taken

    def _next(
        self, incarnation: int, batch: BatchView, others: Sequence[Place]
    ) -> OpenChunk | None:
        own = self._last.get((incarnation, batch.batch_id))
        if own is None:
            mine = [item for item in batch.out.values() if item.holder == incarnation]
            own = max(mine, key=lambda item: item.leased_at).place if mine else None
        return next_chunk(batch.open, own=own, others=others)

    def _take(self, incarnation: int, batch: BatchView, chunk: OpenChunk, now_s: float) -> None:
        batch.open.remove(chunk)
        self._planned[chunk.chunk_id] = batch.batch_id
        batch.waiting_since = now_s
        self._last[incarnation, batch.batch_id] = chunk.place

    def granted(self, incarnation: int, grants: Iterable[Grant], now_s: float) -> None:
        """Notes leases that the database has granted."""
        for grant in grants:
            batch = self.batches.get(grant.batch_id)
            if batch is not None:
                batch.out[grant.chunk_id] = Out(
                    chunk_id=grant.chunk_id,
                    place=(grant.position, grant.chunk_id),
                    holder=incarnation,
                    tokens=grant.tokens,
                    solo=grant.solo,
                    leased_at=now_s,
                )

    def settled(self, planned: Iterable[str], grants: Iterable[Grant]) -> None:
        """Notes what came of a plan: of a batch whose chunks were gone the view is read anew."""
        given = {grant.chunk_id for grant in grants}
        for chunk_id in planned:
            batch = self.batches.get(self._planned.pop(chunk_id, ""))
            if batch is not None and chunk_id not in given:
                batch.stale = True

    def committed(self, chunk_id: str, batch_id: str | None) -> None:
        """Notes that a chunk is not out any more."""
        batch = self.batches.get(batch_id or "")
        if batch is not None:
            batch.out.pop(chunk_id, None)

    def remaining_lines(self, batch_id: str) -> int:
        """Lines of the batch that nobody has, as far as this replica knows."""
        batch = self.batches.get(batch_id)
        return 0 if batch is None else sum(chunk.lines for chunk in (*batch.open, *batch.solo))

    def cancels(self, holds: Mapping[str, str]) -> list[tuple[str, CancelReason]]:
        """Those of the chunks held (batch by chunk) that must stop."""
        found: list[tuple[str, CancelReason]] = []
        for chunk_id, batch_id in holds.items():
            if batch_id in self.ending:
                found.append((chunk_id, self.ending[batch_id]))
            elif chunk_id in self.revoked:
                found.append((chunk_id, "suspects"))
        return found

    def _shares(self, fitting: Iterable[BatchView]) -> tuple[Counter[str], set[str]]:
        """Tokens out by tenant, of whatever; tenants that have out what the pod could run."""
        tokens: Counter[str] = Counter()
        for batch in self.batches.values():
            tokens[batch.tenant_id] += sum(item.tokens for item in batch.out.values())
        return tokens, {batch.tenant_id for batch in fitting if batch.out}
