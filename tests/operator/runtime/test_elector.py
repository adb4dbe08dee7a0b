"""The Lease on virtual time: two replicas, an API server that fails, hangs or is partitioned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from tests.support.virtual_time import run_virtual
from weir_operator.cluster.errors import ConflictError, NotFoundError, UnreachableError
from weir_operator.leader.elector import Elector, NotLeaderError, Terms
from weir_operator.leader.lease import LeaseRecord, Sighting, decide, next_manifest
from weir_operator.leader.watchdog import Watchdog

TERMS = Terms(
    namespace="weir",
    name="weir-operator",
    lease_s=10,
    renew_deadline_s=6,
    retry_s=2,
    request_timeout_s=2,
)


class LeaseServer:
    """One Lease with optimistic concurrency, as the API server keeps it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def write(self, manifest: Mapping[str, Any], *, create: bool) -> Mapping[str, Any]:
        given = manifest["metadata"].get("resourceVersion")
        if create and self.lease is not None:
            raise ConflictError("exists")
        if not create and (self.lease is None or given != str(self.version)):
            raise ConflictError("changed")
        self.version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**manifest, "metadata": metadata}
        return self.lease


class Line:
    """A replica's connection to the server. ``mode``: up, down, hung, slow to answer a change."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.mode = "up"

    async def _pass(self) -> None:
        await asyncio.sleep(0.01)
        if self.mode == "down":
            raise UnreachableError("no connection")
        if self.mode == "hung":
            await asyncio.sleep(3600)

    async def read(self) -> Mapping[str, Any]:
        await self._pass()
        if self.server.lease is None:
            raise NotFoundError("no lease")
        return self.server.lease

    async def create(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._pass()
        return self.server.write(manifest, create=True)

    async def replace(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._pass()
        answer = self.server.write(manifest, create=False)
        if self.mode == "slow":
            await asyncio.sleep(0.5)
        return answer


class Replica:
    """An elector, and when it was lost."""

    def __init__(self, name: str, server: LeaseServer, clock: Callable[[], float]) -> None:
        self.line = Line(server)
        self.clock = clock
        self.lost_at_s: float | None = None
        self.elector = Elector(
            self.line,
            TERMS,
            identity=name,
            clock=clock,
            random=Random(name),  # noqa: S311
            on_lost=self._lost,
        )
        self.task = asyncio.create_task(self.elector.run())

    def _lost(self) -> None:
        self.lost_at_s = self.clock()

    def kill(self) -> None:
        self.task.cancel()


async def leader_of(*replicas: Replica, within_s: float) -> Replica:
    """The one that leads soonest."""
    async with asyncio.timeout(within_s):
        while True:
            for replica in replicas:
                if replica.elector.may_write():
                    return replica
            await asyncio.sleep(0.05)


def test_one_of_two_leads_and_stays() -> None:
    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        replicas = [Replica("a", server, clock), Replica("b", server, clock)]
        leader = await leader_of(*replicas, within_s=5)
        for _ in range(600):
            await asyncio.sleep(0.1)
            writers = [replica for replica in replicas if replica.elector.may_write()]
            assert writers == [leader]
        assert server.lease is not None
        assert server.lease["spec"]["leaseTransitions"] == 0

    run_virtual(main)


def test_a_killed_leader_is_followed_within_20_s() -> None:
    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        first, second = Replica("a", server, clock), Replica("b", server, clock)
        leader = await leader_of(first, second, within_s=5)
        other = second if leader is first else first
        leader.kill()
        killed_at_s = clock()
        await leader_of(other, within_s=20)
        assert clock() - killed_at_s >= TERMS.lease_s - TERMS.retry_s

    run_virtual(main)


def test_an_orderly_end_is_followed_at_once() -> None:
    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        first, second = Replica("a", server, clock), Replica("b", server, clock)
        leader = await leader_of(first, second, within_s=5)
        leader.kill()
        await leader.elector.release()
        assert not leader.elector.may_write()
        await leader_of(second if leader is first else first, within_s=TERMS.retry_s + 0.5)

    run_virtual(main)


def test_an_end_amid_a_renewal_gives_the_lease_back_too() -> None:
    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        first, second = Replica("a", server, clock), Replica("b", server, clock)
        leader = await leader_of(first, second, within_s=5)
        leader.line.mode = "slow"
        known = server.version
        for _ in range(600):
            await asyncio.sleep(0.01)
            if server.version > known:
                break
        assert server.version > known
        leader.kill()  # the server has renewed the Lease, the leader has not heard of it
        leader.line.mode = "up"
        await leader.elector.release()
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == ""
        await leader_of(second if leader is first else first, within_s=TERMS.retry_s + 0.5)

    run_virtual(main)


@pytest.mark.parametrize("mode", ["down", "hung"])
def test_a_partitioned_leader_stops_before_the_next_one_starts(mode: str) -> None:
    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        first, second = Replica("a", server, clock), Replica("b", server, clock)
        leader = await leader_of(first, second, within_s=5)
        other = second if leader is first else first
        leader.line.mode = mode
        cut_at_s = clock()
        started_at_s = None
        while started_at_s is None:
            assert not (leader.elector.may_write() and other.elector.may_write())
            if other.elector.may_write():
                started_at_s = clock()
            await asyncio.sleep(0.01)
        assert leader.lost_at_s is not None
        assert leader.lost_at_s <= cut_at_s + TERMS.renew_deadline_s + 0.1
        assert started_at_s - leader.lost_at_s >= 1
        with pytest.raises(NotLeaderError):
            leader.elector.check()

    run_virtual(main)


def test_a_server_that_hangs_for_all_has_no_writer_and_then_one() -> None:
    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        first, second = Replica("a", server, clock), Replica("b", server, clock)
        leader = await leader_of(first, second, within_s=5)
        for replica in (first, second):
            replica.line.mode = "hung"
        await asyncio.sleep(TERMS.renew_deadline_s + 0.5)
        assert not first.elector.may_write()
        assert not second.elector.may_write()
        assert leader.lost_at_s is not None
        other = second if leader is first else first
        other.line.mode = "up"
        await leader_of(other, within_s=20)

    run_virtual(main)


def test_a_short_outage_keeps_the_leader() -> None:
    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        replica = Replica("a", server, clock)
        await leader_of(replica, within_s=5)
        replica.line.mode = "down"
        await asyncio.sleep(2.5)
        replica.line.mode = "up"
        await asyncio.sleep(30)
        assert replica.elector.may_write()
        assert replica.lost_at_s is None

    run_virtual(main)


def test_a_lease_taken_or_deleted_by_hand_ends_the_leader() -> None:
    async def main(clock: Callable[[], float]) -> None:
        for taken in (True, False):
            server = LeaseServer()
            replica = Replica("a", server, clock)
            await leader_of(replica, within_s=5)
            assert server.lease is not None
            if taken:
                spec = {**server.lease["spec"], "holderIdentity": "someone"}
                server.write({**server.lease, "spec": spec}, create=False)
            else:
                server.lease = None
            await asyncio.sleep(TERMS.retry_s + 0.1)
            assert replica.lost_at_s is not None
            assert not replica.elector.may_write()

    run_virtual(main)


def test_a_leader_renews_by_one_call_and_bears_a_change_by_others() -> None:
    class Counted(Line):
        reads = 0

        async def read(self) -> Mapping[str, Any]:
            self.reads += 1
            return await super().read()

    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        replica = Replica("a", server, clock)
        await leader_of(replica, within_s=5)
        counted = Counted(server)
        replica.elector._store = counted
        await asyncio.sleep(10)
        assert counted.reads == 0
        assert server.lease is not None
        labels = {"metadata": {**server.lease["metadata"], "labels": {"a": "b"}}}
        server.write({**server.lease, **labels}, create=False)
        await asyncio.sleep(10)
        assert counted.reads == 1
        assert replica.elector.may_write()
        assert server.lease["metadata"]["labels"] == {"a": "b"}

    run_virtual(main)


def test_renewals_count_from_when_they_were_sent() -> None:
    class Slow(Line):
        async def replace(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
            written = self.server.write(manifest, create=False)
            await asyncio.sleep(1.5)
            return written

    async def main(clock: Callable[[], float]) -> None:
        server = LeaseServer()
        replica = Replica("a", server, clock)
        await leader_of(replica, within_s=5)
        slow = Slow(server)
        replica.elector._store = slow
        before_s = clock()
        await asyncio.sleep(4)
        deadline_s = replica.elector.deadline_s()
        assert deadline_s is not None
        assert before_s < deadline_s <= clock() + TERMS.renew_deadline_s - 1.4

    run_virtual(main)


def record(holder: str | None, *, lease_s: float = 10.0) -> LeaseRecord:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": lease_s}
    return LeaseRecord.parse({"metadata": {"resourceVersion": "7"}, "spec": spec})


def test_silence_counts_from_our_own_first_sight() -> None:
    seen = Sighting(resource_version="7", seen_at_s=100.0)
    arguments: dict[str, Any] = {"me": "a", "own_lease_s": 10.0}
    assert decide(None, None, now_s=0.0, **arguments) == "create"
    assert decide(record("a"), seen, now_s=101.0, **arguments) == "renew"
    assert decide(record(""), seen, now_s=100.0, **arguments) == "take"
    assert decide(record("b"), seen, now_s=109.9, **arguments) == "wait"
    assert decide(record("b"), seen, now_s=110.0, **arguments) == "take"
    assert decide(record("b", lease_s=30), seen, now_s=129.0, **arguments) == "wait"
    assert decide(record("b", lease_s=1), seen, now_s=105.0, **arguments) == "wait"


def test_the_watchdog_sees_a_loop_that_is_stuck() -> None:
    now_s, deadline_s = [100.0], [106.0]
    watchdog = Watchdog(lambda: deadline_s[0], clock=lambda: now_s[0], end=lambda: None)
    assert not watchdog.expired()
    now_s[0] = 106.9
    assert not watchdog.expired()  # the loop itself has a second to act
    now_s[0] = 107.1
    assert watchdog.expired()


def test_a_lease_that_changed_hands_as_often_as_can_be_counted_is_still_taken() -> None:
    """The count is an int32: the API server would refuse one more, and nobody would lead."""
    most = 2**31 - 1
    full = LeaseRecord.parse(
        {
            "metadata": {"namespace": "weir", "name": "weir-operator", "resourceVersion": "7"},
            "spec": {"holderIdentity": "", "leaseTransitions": most},
        }
    )
    now = datetime(2026, 1, 1, tzinfo=UTC)
    taken = next_manifest(full, namespace="weir", name="weir-operator", me="b", lease_s=10, now=now)
    assert taken["spec"]["holderIdentity"] == "b"
    assert taken["spec"]["leaseTransitions"] == most
