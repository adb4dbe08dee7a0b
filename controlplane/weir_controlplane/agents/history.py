"""Online KV demand of every pod: collected in memory, added to the database in batches.

Each replica writes the samples that it saw as sums, so that rows add up whoever wrote them, and
any replica can forecast for any pod. Bounded: hours in 10 s spans, days in 10 min spans.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, delete, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from weir_controlplane.forecast.demand import BUCKET_FIELDS, BUCKET_S, COARSE_BUCKET_S, Bucket
from weir_controlplane.forecast.series import DAYS_S, RECENT_S, PodHistory
from weir_controlplane.store.database import Database
from weir_controlplane.store.fleet_models import KvDemand

AHEAD_S = 60  # by which the time of replicas may differ
OTHERS_S = 60  # what other replicas wrote is read again for so long
_SLICE_ROWS = 100  # between two of them, syncs are answered


@dataclass(kw_only=True, slots=True)
class _Filling:
    """The bucket of a pod that its samples go into now: a sample costs four sums."""

    start_s: int
    samples: int = 0
    sum_blocks: float = 0.0
    sum_sq_blocks: float = 0.0
    max_blocks: int = 0

    def add(self, blocks: int) -> None:
        """Takes a sample."""
        self.samples += 1
        self.sum_blocks += blocks
        self.sum_sq_blocks += float(blocks) ** 2
        self.max_blocks = max(self.max_blocks, blocks)

    def bucket(self, length_s: int) -> Bucket:
        """The samples as a bucket of ``length_s``, a multiple of `BUCKET_S`."""
        return Bucket(
            start_s=self.start_s // length_s * length_s,
            samples=self.samples,
            sum_blocks=self.sum_blocks,
            sum_sq_blocks=self.sum_sq_blocks,
            max_blocks=self.max_blocks,
        )


class DemandLog:
    """Collects samples; `flush` adds them to the database."""

    def __init__(self) -> None:
        self._pods: dict[str, PodHistory] = {}
        self._filling: dict[str, _Filling] = {}  # not in `_pods` and `_pending` yet
        self._pending: dict[tuple[str, int, int], Bucket] = {}

    def knows(self, agent_id: str) -> bool:
        """Whether the past of a pod was read."""
        return agent_id in self._pods

    def pod(self, agent_id: str) -> PodHistory | None:
        """The past of a pod; None until it was read."""
        self._close(agent_id)
        return self._pods.get(agent_id)

    async def load(self, database: Database, agent_id: str, now_s: float) -> None:
        """Reads the past of a pod, once."""
        if agent_id in self._pods:
            return
        async with database.read() as session:
            rows = (
                await session.execute(
                    _rows().where(
                        KvDemand.agent_id == agent_id,
                        KvDemand.start_s.between(int(now_s - DAYS_S), int(now_s)),
                    )
                )
            ).all()
        pod = PodHistory()
        for row in rows:
            pod.series(row.length_s).add(_bucket(row))
        self._pods.setdefault(agent_id, pod)

    def record(self, agent_id: str, at_s: float, blocks: int) -> None:
        """Notes one sample of online KV demand."""
        start_s = int(at_s // BUCKET_S) * BUCKET_S
        filling = self._filling.get(agent_id)
        if filling is None or filling.start_s != start_s:
            self._close(agent_id)
            filling = self._filling[agent_id] = _Filling(start_s=start_s)
        filling.add(blocks)

    def _close(self, agent_id: str) -> None:
        """Moves the samples of the bucket that is being filled to where they are read."""
        filling = self._filling.pop(agent_id, None)
        if filling is None:
            return
        pod = self._pods.get(agent_id)
        for length_s in (BUCKET_S, COARSE_BUCKET_S):
            bucket = filling.bucket(length_s)
            if pod is not None:
                pod.series(length_s).add(bucket)
            key = (agent_id, length_s, bucket.start_s)
            pending = self._pending.get(key)
            self._pending[key] = bucket if pending is None else pending.plus(bucket)

    async def flush(self, database: Database) -> int:
        """Adds what was collected to the database; the number of rows written."""
        for number, agent_id in enumerate(list(self._filling), start=1):
            self._close(agent_id)
            if number % _SLICE_ROWS == 0:
                await asyncio.sleep(0)
        pending, self._pending = self._pending, {}
        rows = [
            {
                "agent_id": agent_id,
                "length_s": length_s,
                **{name: getattr(bucket, name) for name in BUCKET_FIELDS},
            }
            for (agent_id, length_s, _), bucket in sorted(pending.items())
        ]
        done = 0
        try:
            for start in range(0, len(rows), _SLICE_ROWS):
                await _add(database, rows[start : start + _SLICE_ROWS])
                done = start + _SLICE_ROWS
                await asyncio.sleep(0)
        except BaseException:
            self._keep(rows[done:])
            raise
        return len(rows)

    def _keep(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Puts back what could not be written; later samples of the same span were collected.

        Without what no forecast will read: however long the database is away, this is bounded.
        """
        newest_s = max((row["start_s"] for row in rows), default=0)
        for row in rows:
            span_s = RECENT_S if row["length_s"] == BUCKET_S else DAYS_S
            if row["start_s"] < newest_s - span_s:
                continue
            bucket = Bucket(**{name: row[name] for name in BUCKET_FIELDS})
            key = (row["agent_id"], row["length_s"], bucket.start_s)
            later = self._pending.get(key)
            self._pending[key] = bucket if later is None else bucket.plus(later)

    async def read_others(self, database: Database, now_s: float) -> None:
        """Takes over what other replicas wrote lately of the pods that are known here.

        Most pods sync with one replica: only where the samples do not add up are buckets read.
        """
        since_s, until_s = int(now_s - OTHERS_S), int(now_s)
        lately = and_(KvDemand.length_s == BUCKET_S, KvDemand.start_s.between(since_s, until_s))
        coarse = and_(
            KvDemand.length_s == COARSE_BUCKET_S,
            KvDemand.start_s.between(since_s - COARSE_BUCKET_S, until_s),
        )
        totals = select(KvDemand.agent_id, func.sum(KvDemand.samples).label("samples"))
        async with database.read() as session:
            found = await session.execute(totals.where(lately).group_by(KvDemand.agent_id))
            written = {row.agent_id: int(row.samples) for row in found}
        differing = await self._differing(written, since_s)
        for start in range(0, len(differing), _SLICE_ROWS):
            part = differing[start : start + _SLICE_ROWS]
            async with database.read() as session:
                of_part = _rows(KvDemand.agent_id).where(
                    or_(lately, coarse), KvDemand.agent_id.in_(part)
                )
                self._take_over((await session.execute(of_part)).all())

    async def _differing(self, written: Mapping[str, int], since_s: int) -> list[str]:
        """The known pods whose samples since then are not those written and those unwritten."""
        unwritten: Counter[str] = Counter()
        for (agent_id, length_s, start_s), bucket in self._pending.items():
            if length_s == BUCKET_S and start_s >= since_s:
                unwritten[agent_id] += bucket.samples
        found = []
        for number, (agent_id, samples) in enumerate(written.items(), start=1):
            pod = self._pods.get(agent_id)
            if pod is not None:
                known = pod.recent.samples_since(since_s)
                if known != samples + unwritten[agent_id]:
                    found.append(agent_id)
            if number % _SLICE_ROWS == 0:
                await asyncio.sleep(0)
        return found

    def _take_over(self, rows: Sequence[Any]) -> None:
        for row in rows:
            pod = self._pods.get(row.agent_id)
            if pod is None:
                continue
            bucket = _bucket(row)
            unwritten = self._pending.get((row.agent_id, row.length_s, row.start_s))
            whole = bucket if unwritten is None else bucket.plus(unwritten)
            pod.series(row.length_s).add(whole, replace=True)

    def forget_except(self, agent_ids: Collection[str]) -> None:
        """Lets go of pods that are gone; their rows stay until they are trimmed."""
        for agent_id in self._pods.keys() - agent_ids:
            self._close(agent_id)
            del self._pods[agent_id]

    @staticmethod
    async def trim(database: Database, now_s: float) -> None:
        """Deletes rows that no forecast reads any more, or that a clock ahead of ours has made."""
        for length_s, span_s in ((BUCKET_S, RECENT_S), (COARSE_BUCKET_S, DAYS_S)):
            async with database.transaction() as session:
                await session.execute(
                    delete(KvDemand).where(
                        KvDemand.length_s == length_s,
                        ~KvDemand.start_s.between(int(now_s - span_s), int(now_s + AHEAD_S)),
                    )
                )


def _rows(*more: Any) -> Any:  # noqa: ANN401 - a select of columns
    columns = (KvDemand.length_s, *(getattr(KvDemand, name) for name in BUCKET_FIELDS), *more)
    return select(*columns).order_by(KvDemand.start_s)


def _bucket(row: Any) -> Bucket:  # noqa: ANN401 - a row of `_rows`
    return Bucket(**{name: getattr(row, name) for name in BUCKET_FIELDS})


async def _add(database: Database, rows: list[dict[str, Any]]) -> None:
    insert = postgresql.insert if database.dialect == "postgresql" else sqlite.insert
    statement = insert(KvDemand)
    new = statement.excluded
    added = {name: getattr(KvDemand, name) + getattr(new, name) for name in BUCKET_FIELDS[1:4]}
    larger = case((new.max_blocks > KvDemand.max_blocks, new.max_blocks), else_=KvDemand.max_blocks)
    async with database.transaction() as session:
        # Past the object mapper, which takes ten times as long for a row.
        await (await session.connection()).execute(
            statement.on_conflict_do_update(
                index_elements=["agent_id", "length_s", "start_s"],
                set_={**added, "max_blocks": larger},
            ),
            rows,
        )
