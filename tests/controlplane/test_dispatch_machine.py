"""Leases and commits in any order: no line is lost, none is doubled (§8.2, §8.4, §8.5)."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import update

from tests.controlplane.bench import (
    Process,
    assert_nothing_lost_or_doubled,
    chunks_of,
    commit_lines,
    put_batch,
    upload,
)
from weir_controlplane.dispatch.errors import StaleLeaseError
from weir_controlplane.dispatch.settle import settle
from weir_controlplane.dispatch.watch import close_ending, expire_leases
from weir_controlplane.dispatch.work import Grant, ReportedDeath
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.line_index import unpack_lines
from weir_controlplane.store.models import Batch, Chunk

LINES = 12
AGENTS = st.integers(0, 2)
PICK = st.integers(0, 1000)


class LeaseMachine(RuleBasedStateMachine):
    """Three agents, one batch, and everything that can go wrong between them."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="weir-test-machine-"))
        self.database = Database(f"sqlite+aiosqlite:///{self.folder / 'weir.db'}")
        self.storage = Storage(f"file://{self.folder / 'files'}")
        self.run(self.database.open())
        self.processes = [Process(agent_id=f"pod-{number}") for number in range(3)]
        self.held: list[dict[str, Grant]] = [{}, {}, {}]
        self.uploads: list[tuple[Grant, str, list[int], bool]] = []
        self.seen: list[Grant] = []
        self.accepted: list[tuple[Grant, str, list[int], bool]] = []
        self.fetched: dict[tuple[str, int], list[int]] = {}  # lines by lease, as its holder saw
        self.deaths = 0
        self.cancelled = False
        self.batch_id = ""

    def run(self, work: Any) -> Any:  # noqa: ANN401 - any awaitable
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        try:
            if self.batch_id:
                self.run(self.drain())
        finally:
            self.run(self.database.close())
            self.loop.close()
            shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.batch_id = self.run(put_batch(self.database, lines=LINES))
        for agent in range(3):
            self.run(self._sync(agent, 1))

    @rule(
        agent=AGENTS,
        count=st.integers(0, 2),
        reply_lost=st.booleans(),
        most_lines=st.sampled_from([None, 1, 3]),
    )
    def sync(self, agent: int, count: int, reply_lost: bool, most_lines: int | None) -> None:
        """A sync that asks for chunks, by chance on a small disk, and sometimes loses its reply."""
        self.run(self._sync(agent, count, reply_lost=reply_lost, most_lines=most_lines))

    @rule(agent=AGENTS, pick=PICK, reply_lost=st.booleans())
    def die(self, agent: int, pick: int, reply_lost: bool) -> None:
        """An agent reports that its engine died with up to three of its lines."""
        held = list(self.held[agent].values())
        lines = [
            (grant.chunk_id, grant.attempt, line)
            for grant in held
            for line in self.fetched[grant.chunk_id, grant.attempt]
        ]
        start = pick % len(lines) if lines else 0
        resident = tuple(lines[start : start + 1 + pick % 3])
        self.deaths += 1
        death = ReportedDeath(
            death_id=f"death-{self.deaths}", kind="crash", solo=False, resident=resident
        )
        self.run(self._sync(agent, 0, reply_lost=reply_lost, deaths=(death,)))

    async def _sync(
        self,
        agent: int,
        count: int,
        *,
        reply_lost: bool = False,
        most_lines: int | None = None,
        deaths: tuple[ReportedDeath, ...] = (),
    ) -> None:
        process, held = self.processes[agent], self.held[agent]
        free = [item for item in await self._chunks() if item.state == "open"]
        alone = next((item.id for item in free if item.solo), None)
        wanted = [item.id for item in free if not item.solo][:count]
        work = process.work(
            held=list(held.values()),
            deaths=deaths,
            wanted=[alone] if alone is not None and not held else wanted,
            most_lines=most_lines,
        )
        settled = await settle(self.database, work)
        if reply_lost:
            return
        process.incarnation = settled.incarnation
        for chunk_id in settled.lost:
            held.pop(chunk_id, None)
        for grant in (*settled.adopted, *settled.grants):
            before = held.get(grant.chunk_id)
            assert before is None or grant.attempt > before.attempt
            held[grant.chunk_id] = grant
            self.seen.append(grant)
        await self._chunks()
        assert set(settled.holds) == set(held)

    async def _chunks(self) -> list[Chunk]:
        found = await chunks_of(self.database, self.batch_id)
        self.fetched |= {
            (item.id, item.attempt): [line.line for line in unpack_lines(item.line_index)]
            for item in found
            if item.state == "leased"
        }
        return found

    @rule(agent=AGENTS)
    def crash_and_restart(self, agent: int) -> None:
        """A new process of the agent adopts what the old one held."""
        self.processes[agent].restart()
        self.held[agent] = {}
        self.run(self._sync(agent, 0))

    @rule(agent=AGENTS, pick=PICK)
    def give_back(self, agent: int, pick: int) -> None:
        """A lease is handed back uncommitted."""
        held = self.held[agent]
        if not held:
            return
        grant = held.pop(sorted(held)[pick % len(held)])
        process = self.processes[agent]
        settled = self.run(
            settle(self.database, process.work(held=list(held.values()), returned=[grant]))
        )
        process.incarnation = settled.incarnation
        for chunk_id in settled.lost:
            held.pop(chunk_id, None)

    @rule(agent=AGENTS, pick=PICK, subset=PICK, answer_lost=st.booleans())
    def finish(self, agent: int, pick: int, subset: int, answer_lost: bool) -> None:
        """A holder uploads and commits all or some of the lines of a chunk."""
        held = self.held[agent]
        if held:
            self._finish(held[sorted(held)[pick % len(held)]], subset, answer_lost=answer_lost)

    @precondition(lambda self: self.seen)
    @rule(pick=PICK, subset=PICK)
    def finish_late(self, pick: int, subset: int) -> None:
        """Someone who held a lease at some time does so."""
        self._finish(self.seen[pick % len(self.seen)], subset, answer_lost=False)

    def _finish(self, grant: Grant, subset: int, *, answer_lost: bool) -> None:
        lines = self.fetched[grant.chunk_id, grant.attempt]
        some = [line for place, line in enumerate(lines) if (subset >> place) & 1] or lines
        try:
            upload_id = self.run(upload(self.database, self.storage, grant, some))
        except StaleLeaseError:
            return
        final = len(some) == len(lines)
        self.uploads.append((grant, upload_id, some, final))
        if not answer_lost:
            self._commit(self.uploads[-1])

    @precondition(lambda self: self.uploads)
    @rule(pick=PICK)
    def commit_again(self, pick: int) -> None:
        """An upload is committed late, or once more."""
        self._commit(self.uploads[pick % len(self.uploads)])

    def _commit(self, wish: tuple[Grant, str, list[int], bool]) -> None:
        grant, upload_id, lines, final = wish
        current = self.run(self._is_current(grant))
        done = self.run(commit_lines(self.database, grant, upload_id, lines, final=final))
        for held in self.held:
            if held.get(grant.chunk_id) == grant:
                del held[grant.chunk_id]
        if current:
            assert done.state == "accepted"
        if done.state == "accepted":
            assert current or wish in self.accepted
            self.accepted.append(wish)
            again = self.run(commit_lines(self.database, grant, upload_id, lines, final=final))
            assert again.state == "accepted"

    async def _is_current(self, grant: Grant) -> bool:
        chunks = {item.id: item for item in await self._chunks()}
        chunk = chunks[grant.chunk_id]
        lease = (chunk.state, chunk.attempt, chunk.nonce)
        return lease == ("leased", grant.attempt, grant.nonce)

    @rule(pick=PICK)
    def a_lease_runs_out(self, pick: int) -> None:
        """The database's clock passes the end of a lease, or of a revocation's grace."""
        self.run(self._end_lease(pick))

    async def _end_lease(self, pick: int) -> None:
        leased = [item.id for item in await self._chunks() if item.state == "leased"]
        if leased:
            async with self.database.transaction() as session:
                await session.execute(
                    update(Chunk)
                    .where(Chunk.id == leased[pick % len(leased)])
                    .values(lease_until=db_now() - 1)
                )
        await expire_leases(self.database)

    @precondition(lambda self: not self.cancelled)
    @rule(chance=PICK)
    def cancel(self, chance: int) -> None:
        """Now and then the batch is cancelled."""
        if chance % 10:
            return
        self.cancelled = True

        async def cancel() -> None:
            async with self.database.transaction() as session:
                await session.execute(
                    update(Batch)
                    .where(Batch.id == self.batch_id)
                    .values(status="cancelling", closing_as="cancelled", cancelling_at=db_now())
                )
            await close_ending(self.database)

        self.run(cancel())

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if self.batch_id:
            self.run(assert_nothing_lost_or_doubled(self.database, self.batch_id, LINES))

    async def drain(self) -> None:
        """Whatever happened, a healthy agent can finish what is left."""
        process = Process(agent_id="pod-healthy")
        for _ in range(60):
            found = await self._chunks()
            if not any(item.state in {"open", "leased"} for item in found):
                break
            leased = [item.id for item in found if item.state == "leased"]
            async with self.database.transaction() as session:
                await session.execute(
                    update(Chunk).where(Chunk.id.in_(leased)).values(lease_until=db_now() - 1)
                )
                if self.cancelled:
                    await session.execute(
                        update(Batch)
                        .where(Batch.id == self.batch_id)
                        .values(cancelling_at=db_now() - 60)
                    )
            await close_ending(self.database)
            await expire_leases(self.database)
            wanted = [item.id for item in await self._chunks() if item.state == "open"]
            settled = await settle(self.database, process.work(wanted=wanted))
            process.incarnation = settled.incarnation
            await self._chunks()
            for grant in settled.grants:
                lines = self.fetched[grant.chunk_id, grant.attempt]
                number = await upload(self.database, self.storage, grant, lines)
                await commit_lines(self.database, grant, number, lines, final=True)
        else:
            raise AssertionError("the batch does not end")
        found_lines = await assert_nothing_lost_or_doubled(self.database, self.batch_id, LINES)
        if not self.cancelled:
            answered = set(found_lines.committed) | found_lines.failed
            assert answered == set(range(1, LINES + 1))


LeaseMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLeaseMachine = LeaseMachine.TestCase
