"""Stored results survive what happens to processes and disks (design §8 rule 3)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from weir_agent import wire
from weir_agent.chunks.disk import Disk
from weir_agent.chunks.spool import ChunkFile, DiskFullError, Spool, as_ranges


def lease(chunk_id: str = "chunk", *, attempt: int = 1, lines: int = 4) -> wire.Lease:
    return wire.Lease(chunk_id=chunk_id, attempt=attempt, nonce="n", lines=lines)


def record(line: int) -> bytes:
    return json.dumps({"line": line, "text": "é" * line}).encode() + b"\n"


def spool(folder: Path, *, free: int = 10**9, total: int = 10**9) -> Spool:
    return Spool(
        folder,
        max_bytes=None,
        result_max_bytes=1000,
        volume=lambda _: (total, total - free, free),
    )


def test_an_upload_is_in_the_order_of_lines_and_hashed(tmp_path: Path) -> None:
    file = spool(tmp_path).open(lease())
    for line in (3, 1, 4):
        file.append(line, record(line))
    sealed = file.seal()
    content = b"".join(sealed.blocks())
    assert content == record(1) + record(3) + record(4)
    assert sealed.sha256 == hashlib.sha256(content).hexdigest()
    assert (sealed.size_bytes, sealed.ranges) == (len(content), ((1, 1), (3, 4)))
    file.close()


def test_the_first_result_of_a_line_stays(tmp_path: Path) -> None:
    file = spool(tmp_path).open(lease())
    file.append(1, record(1))
    file.append(1, b'{"line": 1, "text": "other"}\n')
    assert b"".join(file.seal().blocks()) == record(1)
    file.close()


def left_behind(folder: Path, tail: bytes) -> Path:
    """Where an earlier process stored the result of line 2, and ``tail`` when it died."""
    first = spool(folder)
    first.open(lease()).append(2, record(2))
    first.close()
    stored = folder / "chunk" / "results.ndjson"
    stored.write_bytes(stored.read_bytes() + tail)
    return stored


def test_results_survive_the_process_and_half_a_line_does_not(tmp_path: Path) -> None:
    left_behind(tmp_path, record(3)[:-4])
    second = spool(tmp_path)
    file = second.open(lease(attempt=2))
    assert file.finished == {2}
    file.append(3, record(3))
    assert b"".join(file.seal().blocks()) == record(2) + record(3)
    second.close()


@pytest.mark.parametrize(
    "torn",
    [
        b"\0" * 40 + b"\n",
        b'{"line": 4, "te\0\0\n',
        b"7\n",
        b"{}\n",
        b'{"line": 1e999}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=["zeros", "half", "number", "object", "infinite", "deep"],
)
def test_what_a_power_failure_left_ends_the_recovery(tmp_path: Path, torn: bytes) -> None:
    """§8 rule 3: nothing but what is whole is delivered; the rest of the chunk runs again."""
    stored = left_behind(tmp_path, torn + record(3))
    second = spool(tmp_path)
    file = second.open(lease(attempt=2))
    assert file.finished == {2}
    assert b"".join(file.seal().blocks()) == stored.read_bytes() == record(2)
    second.close()


async def test_what_was_read_ahead_is_what_open_finds(tmp_path: Path) -> None:
    stored = left_behind(tmp_path, record(3)[:-4])
    second = spool(tmp_path)
    for chunk_id in ("chunk", "chunk", "new"):
        await second.read_ahead(chunk_id)
    assert second.open(lease(attempt=2)).finished == {2}
    second.open(lease(attempt=2)).append(3, record(3))
    file = second.open(lease(attempt=3))  # the same chunk again, still in this process
    assert b"".join(file.seal().blocks()) == stored.read_bytes() == record(2) + record(3)
    assert second.open(lease("new")).finished == frozenset()
    second.drop("chunk")
    assert second.open(lease(attempt=4)).finished == frozenset()
    second.close()


def test_what_nobody_holds_is_deleted(tmp_path: Path) -> None:
    first = spool(tmp_path)
    for name in ("held", "gone"):
        first.open(lease(name)).append(1, record(1))
    first.close()
    second = spool(tmp_path)
    second.open(lease("held", attempt=2))
    assert second.keep_only(frozenset({"held"})) == ("gone",)
    assert [entry.name for entry in tmp_path.iterdir()] == ["held"]
    second.drop("held")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_chunks_folder_stops_nothing(tmp_path: Path) -> None:
    for name in ("chunk", "gone"):
        (tmp_path / name).write_text("somebody's")
    held = spool(tmp_path)
    held.open(lease()).append(1, record(1))
    assert held.keep_only(frozenset({"chunk"})) == ("gone",)
    assert [entry.name for entry in tmp_path.iterdir()] == ["chunk"]
    held.close()


def test_the_worst_case_is_reserved_within_half_the_volume(tmp_path: Path) -> None:
    small = spool(tmp_path, total=10_000, free=10_000)
    assert small.room_bytes == 5_000
    small.open(lease("a", lines=4))
    assert (small.reserved_bytes, small.room_bytes) == (4_000, 1_000)
    with pytest.raises(DiskFullError, match="b may need 2000 bytes"):
        small.open(lease("b", lines=2))
    small.drop("a")
    assert small.room_bytes == 5_000
    small.close()


def test_others_on_the_volume_leave_less_room(tmp_path: Path) -> None:
    assert spool(tmp_path, total=10_000, free=2_000).room_bytes == 1_000


def test_a_second_open_of_the_same_attempt_is_the_same_file(tmp_path: Path) -> None:
    one = spool(tmp_path)
    file: ChunkFile = one.open(lease())
    assert one.open(lease()) is file
    one.close()


@pytest.mark.parametrize(
    ("lines", "ranges"),
    [((), ()), ((5,), ((5, 5),)), ((1, 2, 3, 7, 9, 10), ((1, 3), (7, 7), (9, 10)))],
)
def test_ranges(lines: tuple[int, ...], ranges: tuple[tuple[int, int], ...]) -> None:
    assert as_ranges(lines) == ranges


def test_a_volume_that_others_filled_is_told(tmp_path: Path) -> None:
    free = [10_000]
    watched = Spool(
        tmp_path,
        max_bytes=None,
        result_max_bytes=1000,
        volume=lambda _: (20_000, 20_000 - free[0], free[0]),
    )
    watched.open(lease(lines=4))
    seen = []
    for free[0] in (10_000, 4_999):  # four results are promised; then there is no fifth's room
        seen.append(watched.volume_full)
    assert seen == [False, True]
    watched.close()


def test_the_log_says_what_a_volume_lacks(tmp_path: Path) -> None:
    small = spool(tmp_path, free=6_000, total=7_000)
    with capture_logs() as logs:
        assert Disk(small, clock=lambda: 0.0).bytes_left(idle=True) == 0
    (told,) = logs
    assert told["full"]
    assert "6000 of 7000 bytes are free, of which chunks may take 3000" in told["reason"]
    assert "they need 32000: make room on the volume of WEIR_DATA_DIR" in told["reason"]
