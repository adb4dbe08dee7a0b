"""Which offline lines are in the engine, and which engine deaths are not reported yet, on disk.

The lines in the engine are written before they enter it, without forcing the disk: what must be
survived is the death of a process, not of the machine (design §8, rule 5).
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Literal

from weir_agent import wire
from weir_agent.chunks.spool import DISK_ERRORS, DiskFullError

COMPACT_BYTES = 1 << 20
MOST_RESIDENT = 4_096
Resident = tuple[str, int, int]


class CrashJournal:
    """The journal of one agent in its data folder; one process writes it at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._deaths = folder / "deaths"
        self._deaths.mkdir(exist_ok=True, mode=0o700)
        self._path = folder / "resident.ndjson"
        self._resident: dict[Resident, bool] = {}
        self._apart = False
        try:
            self._descriptor = self._opened()
        except OSError as error:  # no line enters without a journal; online requests need none
            if error.errno not in DISK_ERRORS:
                raise
            self._descriptor, self._apart = os.memfd_create("journal"), True
        self._size_bytes = os.fstat(self._descriptor).st_size

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def _come_back(self) -> None:
        """Takes up the file that could not be opened, or that somebody removed.

        Raises:
            DiskFullError: it cannot be opened.
        """
        try:
            self._deaths.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = self._opened()
            os.ftruncate(descriptor, 0)
        except OSError as error:
            raise DiskFullError(f"{self._path}: {error.strerror}") from None
        os.dup2(descriptor, self._descriptor, inheritable=False)
        os.close(descriptor)
        self._apart, self._size_bytes = False, 0
        for key, solo in self._resident.items():
            self._append(_entered(*key, solo=solo))

    def enter(self, chunk_id: str, attempt: int, line: int, *, solo: bool) -> None:
        """A line is about to enter the engine.

        Raises:
            DiskFullError: the journal could not be written; the line must not run.
        """
        if self._apart or not os.path.lexists(self._path):  # else nobody would find it
            self._come_back()
        self._append(_entered(chunk_id, attempt, line, solo=solo))
        self._resident[chunk_id, attempt, line] = solo

    def leave(self, chunk_id: str, attempt: int, line: int) -> None:
        """A line left the engine."""
        self._resident.pop((chunk_id, attempt, line), None)
        try:
            if not self._resident:
                os.ftruncate(self._descriptor, 0)
                self._size_bytes = 0
            elif self._size_bytes <= COMPACT_BYTES or not self._compact():
                self._append(_record("-", chunk_id, attempt, line))
        except (DiskFullError, OSError):
            return  # the line is suspected if the engine dies before the next compaction

    def recover(self) -> dict[Resident, bool]:
        """The lines that an earlier process left in its engine, each with its ``solo``."""
        return _resident_in(self._path)

    def clear(self) -> None:
        """No line is in any engine."""
        self._resident.clear()
        os.ftruncate(self._descriptor, 0)
        self._size_bytes = 0

    def record_death(
        self, kind: Literal["crash", "hang"], resident: dict[Resident, bool] | None = None
    ) -> wire.Death:
        """An engine died with what is resident (or was, by an earlier process); forced to disk.

        A volume without room for a record has room for a name: the journal becomes the record.

        Raises:
            OSError: the volume took neither; the journal stays as it is, for another process.
        """
        lines = self._resident if resident is None else resident
        death = _death(uuid.uuid4().hex, kind, lines)
        try:
            self._write(death)
        except OSError:
            try:
                self._path.replace(self._folder / f"resident-{kind}-{death.death_id}.ndjson")
            finally:
                self._stand_aside()
        with contextlib.suppress(OSError):  # the death is on disk; the next start clears it
            self.clear()
        return death

    def _stand_aside(self) -> None:
        """Lines that leave the engine from here on are not taken out of the file."""
        apart = os.memfd_create("journal")
        os.dup2(apart, self._descriptor, inheritable=False)
        os.close(apart)

    def _write(self, death: wire.Death) -> None:
        temporary = self._deaths / f"{death.death_id}.tmp"
        try:
            self._deaths.mkdir(parents=True, exist_ok=True, mode=0o700)
            with temporary.open("wb") as file:
                file.write(death.model_dump_json().encode())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._deaths / f"{death.death_id}.json")
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def deaths(self) -> tuple[wire.Death, ...]:
        """Deaths that the control plane has not accepted yet, oldest first.

        None while the volume cannot be read: whoever asks next is told.
        """
        try:
            return self._unaccepted()
        except OSError:
            return ()

    def _unaccepted(self) -> tuple[wire.Death, ...]:
        found = []
        paths = (*self._deaths.glob("*.json"), *self._folder.glob("resident-*.ndjson"))
        for path in sorted(paths, key=lambda path: path.stat().st_mtime):
            try:
                if path.suffix == ".json":
                    found.append(wire.Death.model_validate_json(path.read_bytes()))
                else:
                    _, kind, death_id = path.stem.split("-")
                    found.append(_death(death_id, kind, _resident_in(path)))
            except ValueError:  # pydantic's too
                path.unlink()  # half of it is lost: it names nobody
        return tuple(found)

    def accepted(self, death_id: str) -> None:
        """The control plane knows this death; a volume that keeps it has it told once more."""
        if not death_id.isalnum():
            return
        with contextlib.suppress(OSError):
            (self._deaths / f"{death_id}.json").unlink(missing_ok=True)
            for path in self._folder.glob(f"resident-*-{death_id}.ndjson"):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Gives the descriptor back."""
        os.close(self._descriptor)

    def _compact(self) -> bool:
        """Writes what is resident anew beside the old file, then in its place; False: not now."""
        content = b"".join(_entered(*key, solo=solo) for key, solo in self._resident.items())
        part = self._path.with_suffix(".part")
        try:
            part.write_bytes(content)
            descriptor = os.open(part, os.O_RDWR | os.O_APPEND)
            part.replace(self._path)
        except OSError:
            return False
        os.dup2(descriptor, self._descriptor, inheritable=False)
        os.close(descriptor)
        self._size_bytes = len(content)
        return True

    def _append(self, content: bytes) -> None:
        try:
            written = os.write(self._descriptor, content)
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            raise DiskFullError(f"{self._path}: {error.strerror}") from None
        if written < len(content):  # the last bytes of a volume take a part, and say nothing
            with contextlib.suppress(OSError):  # no line enters before the disk has room again
                os.ftruncate(self._descriptor, self._size_bytes)
            raise DiskFullError(f"{self._path}: no room for a whole record")
        self._size_bytes += len(content)


def _entered(chunk_id: str, attempt: int, line: int, *, solo: bool) -> bytes:
    return _record("+", chunk_id, attempt, line, solo)


def _record(*fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _resident_in(path: Path) -> dict[Resident, bool]:
    left: dict[Resident, bool] = {}
    for record in path.read_bytes().split(b"\n"):
        try:
            sign, chunk_id, attempt, line, *solo = json.loads(record)
            if sign == "+":
                left[chunk_id, attempt, line] = bool(solo and solo[0])
            else:
                left.pop((chunk_id, attempt, line), None)
        except (ValueError, TypeError, RecursionError):
            continue  # the end of a write that a kill cut off, or what a disk made of one
    return left


def _death(death_id: str, kind: str, lines: Mapping[Resident, bool]) -> wire.Death:
    return wire.Death.model_validate(
        {
            "death_id": death_id,
            "kind": kind,
            "solo": len(lines) == 1 and all(lines.values()),
            "resident": tuple(
                wire.ResidentLine(chunk_id=chunk_id, attempt=attempt, line=line)
                for chunk_id, attempt, line in islice(lines, MOST_RESIDENT)
            ),
        }
    )
