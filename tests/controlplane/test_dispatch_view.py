"""Which chunks a pod gets from a replica's view of the queue."""

from __future__ import annotations

from weir_controlplane.dispatch.batch_view import BatchView, Pod
from weir_controlplane.dispatch.placement import OpenChunk, Room
from weir_controlplane.dispatch.view import WorkView

NOW_S = 1000.0
LINE_BYTES = 1 << 20
DISK_BYTES = 1 << 30


def batch(name: str, *, chunk_lines: int, expires_in_s: float, chunks: int = 4) -> BatchView:
    return BatchView(
        batch_id=name,
        tenant_id="t",
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
    """A chunk whose results have no place on the pod's disk stops no other batch."""
    queue = view(
        batch("urgent", chunk_lines=32, expires_in_s=600.0),
        batch("later", chunk_lines=1, expires_in_s=80_000.0, chunks=2),
    )
    small = pod(lines=64, result_bytes=16 * LINE_BYTES)
    assert sorted(queue.plan(small, NOW_S)) == ["later-0", "later-1"]
