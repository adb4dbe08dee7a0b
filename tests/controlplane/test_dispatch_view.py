"""Which chunks a pod gets from a replica's view of the queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from weir_controlplane.dispatch import order
from weir_controlplane.dispatch.batch_view import BatchView, Out, Pod
from weir_controlplane.dispatch.bounds import MAX_HELD_CHUNKS
from weir_controlplane.dispatch.order import Waiting, class_by_time
from weir_controlplane.dispatch.placement import OpenChunk, Room
from weir_controlplane.dispatch.queue_reader import MAX_OPEN_IN_VIEW, _is_current
from weir_controlplane.dispatch.view import WorkView

NOW_S = 1000.0
LINE_BYTES = 1 << 20
DISK_BYTES = 1 << 30


def batch(
    name: str, *, chunk_lines: int, expires_in_s: float, chunks: int = 4, tenant: str = "t"
) -> BatchView:
    return BatchView(
        batch_id=name,
        tenant_id=tenant,
        model="m",
        revision=None,
        service=None,
        created_at=0.0,
        expires_at=NOW_S + expires_in_s,
        waiting_since=NOW_S,
        open=[
            OpenChunk(chunk_id=f"{name}-{n}", position=n, lines=chunk_lines, tokens=chunk_lines)
            for n in range(chunks)
        ],
    )


def pod(*, lines: int, idle: bool = False, result_bytes: int = DISK_BYTES) -> Pod:
    return Pod(
        incarnation=1,
        service="s",
        models={"m": ""},
        room=Room(
            lines=lines,
            tokens=100_000,
            result_bytes=result_bytes,
            idle=idle,
            line_result_bytes=LINE_BYTES,
        ),
        suspects_of=frozenset(),
        holds_solo=False,
    )


def view(*batches: BatchView) -> WorkView:
    found = WorkView()
    found.batches = {item.batch_id: item for item in batches}
    return found


def test_a_batch_of_small_chunks_does_not_take_the_room_of_an_urgent_one() -> None:
    """A busy pod's room grows line by line: it is kept for the batch that comes first."""
    queue = view(
        batch("urgent", chunk_lines=32, expires_in_s=600.0),
        batch("later", chunk_lines=1, expires_in_s=80_000.0),
    )
    assert queue.plan(pod(lines=2), NOW_S) == []
    assert queue.plan(pod(lines=31), NOW_S) == []
    assert queue.plan(pod(lines=32), NOW_S) == ["urgent-0"]
    assert queue.plan(pod(lines=2, idle=True), NOW_S) == ["urgent-1"]  # one fits in any case


def test_room_is_kept_for_nothing_that_the_pod_cannot_take() -> None:
    """A chunk whose results have no place on what is left of its disk stops no other batch."""
    queue = view(
        batch("urgent", chunk_lines=32, expires_in_s=600.0),
        batch("later", chunk_lines=1, expires_in_s=80_000.0, chunks=2),
    )
    small = pod(lines=64, result_bytes=40 * LINE_BYTES)
    first, *others = queue.plan(small, NOW_S)
    assert (first, sorted(others)) == ("urgent-0", ["later-0", "later-1"])


def test_of_a_chunk_that_no_disk_takes_whole_a_part_is_planned() -> None:
    queue = view(batch("large", chunk_lines=1000, expires_in_s=80_000.0))
    assert queue.plan(pod(lines=64, result_bytes=40 * LINE_BYTES), NOW_S) == ["large-0"]
    assert queue.plan(pod(lines=39, result_bytes=40 * LINE_BYTES), NOW_S) == []  # it is busy
    assert queue.plan(pod(lines=64, result_bytes=LINE_BYTES - 1, idle=True), NOW_S) == []


def test_an_agent_gets_no_more_chunks_than_a_sync_can_name() -> None:
    """Where chunks are small and its room is not, all its syncs would be refused."""
    queue = view(batch("small", chunk_lines=1, expires_in_s=80_000.0, chunks=3000))
    first = queue.plan(pod(lines=4000, idle=True), NOW_S)
    more = queue.plan(replace(pod(lines=4000), held=len(first)), NOW_S)
    assert 500 <= len(first) <= len(first + more) <= MAX_HELD_CHUNKS


def test_a_tenant_of_many_waiting_batches_gets_no_more_than_a_tenant_of_one() -> None:
    """They wait for each other: that makes none of them more urgent than what others have."""

    def of(tenant: str, name: str) -> BatchView:
        return batch(name, chunk_lines=1, expires_in_s=80_000.0, chunks=200, tenant=tenant)

    queue = view(*(of("many", f"many-{n}") for n in range(50)), of("one", "one-0"))
    got: Counter[str] = Counter()
    for minute in range(60):
        now_s = NOW_S + 60.0 * minute
        chosen = queue.plan(pod(lines=4, idle=True), now_s)
        for chunk_id in chosen:
            name = chunk_id.rpartition("-")[0]
            got[queue.batches[name].tenant_id] += 1
            queue.batches[name].out[chunk_id] = Out(
                chunk_id=chunk_id,
                place=(0, chunk_id),
                holder=1,
                tokens=1,
                solo=False,
                leased_at=now_s,
            )
        if minute >= 3:  # each chunk is done after four minutes
            for item in queue.batches.values():
                done = [key for key, out in item.out.items() if now_s - out.leased_at >= 180.0]
                for key in done:
                    queue.committed(key, item.batch_id)
    assert got["one"] + got["many"] == 240
    assert got["one"] >= 100


def test_many_small_batches_are_not_all_looked_at_for_each_that_gets_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a sync of a pod with room for them keeps all others waiting for seconds."""
    looks = 0

    def counted(item: Waiting, now_s: float) -> int:
        nonlocal looks
        looks += 1
        return class_by_time(item, now_s)

    monkeypatch.setattr(order, "class_by_time", counted)
    small = [
        batch(f"b{n}", chunk_lines=1, expires_in_s=80_000.0, chunks=1, tenant=f"t{n % 4}")
        for n in range(300)
    ]
    assert len(view(*small).plan(pod(lines=512, idle=True), NOW_S)) == 300
    assert looks < 10 * len(small)


def test_a_view_whose_chunks_another_replica_has_leased_is_read_again() -> None:
    """Of a large batch it never was: pods stood idle for minutes beside thousands of chunks."""
    many = replace(
        batch("large", chunk_lines=1, expires_in_s=80_000.0, chunks=MAX_OPEN_IN_VIEW),
        open_count=2 * MAX_OPEN_IN_VIEW,
    )
    queue = view(many)
    planned = queue.plan(pod(lines=4, idle=True), NOW_S)
    assert _is_current(many, many)
    queue.settled(planned, [])
    assert not _is_current(many, many)


def test_chunks_that_have_become_suspects_are_read_again() -> None:
    """After their lease: as many are open as before, and any pod got them, several at once."""
    before = replace(batch("b", chunk_lines=1, expires_in_s=80_000.0), open_count=4)
    assert _is_current(before, replace(before, open=[], solo_count=0))
    assert not _is_current(before, replace(before, open=[], solo_count=3))
