"""Writes the engine's steps to a file, off by default: sizes and seconds only, never ids or text.

Made for `weir profile`. A full disk or a full file ends the recording, never the engine.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from os import SEEK_END
from pathlib import Path
from typing import IO

import structlog

from weir_agent.vllm_bridge.steps import StepTiming
from weir_engine.config import EngineShape
from weir_engine.ids import BlockHash
from weir_engine.kv.sharing import distinct_tokens
from weir_engine.request import Request
from weir_engine.sched.plan import StepPlan

_log = structlog.get_logger(__name__)

MOST_BYTES = 64 << 20
"""Largest recording: about 200,000 steps of 50 requests."""

_FLUSH_STEPS = 32

_Sizes = dict[str, object]


class StepFile:
    """One JSON object a line: the engine's shape at each start, then a line for each timed step.

    ``prefills`` are [new, computed] tokens, ``decodes`` contexts in tokens, ``distinct_tokens`` the
    computed ones that it reads, shared ones once, ``seconds`` what the step took. ``pause_s`` is
    the time between the step before and this one, null where the engine had nothing to do in
    between. Lines are added to a file that exists.
    """

    def __init__(self, path: Path, shape: EngineShape, *, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._block_size_tokens = shape.block_size_tokens
        self._most_bytes = most_bytes
        self._in_flight: deque[tuple[StepPlan, _Sizes]] = deque()
        self._busy_since_s: float | None = None
        self._unflushed = 0
        self._stream: IO[str] | None = None
        try:
            torn = _ends_amid_a_line(path)  # its engine was killed
            self._stream = path.open("a", encoding="utf-8")
            self._stream.write("\n" if torn else "")
        except OSError as error:
            self._stop(error.strerror or str(error))
        self._write({"engine": asdict(shape)})

    def sent(self, plan: StepPlan | None, known: Mapping[str, Request]) -> None:
        """A step was sent, None for one without work; call it before the planner's ``begin``."""
        if plan is None:
            self._busy_since_s = None
            return
        prefills: list[tuple[int, int]] = []
        decodes: list[int] = []
        contexts: list[tuple[list[BlockHash], int]] = []
        for work in plan.work:
            request = known.get(work.request_id)
            if request is None:
                continue
            computed = work.hit_tokens if work.admitted else request.computed_tokens
            contexts.append((request.block_hashes, computed))
            if work.tokens == 1:
                decodes.append(computed + 1)
            else:
                prefills.append((work.tokens, computed))
        sizes: _Sizes = {
            "prefills": prefills,
            "decodes": decodes,
            "distinct_tokens": distinct_tokens(contexts, self._block_size_tokens),
        }
        self._in_flight.append((plan, sizes))

    def ended(self, plan: StepPlan, timing: StepTiming, *, more: bool) -> None:
        """It ended; ``more`` when requests are left, so that the next step follows at once."""
        pause_s = None
        if self._busy_since_s is not None:
            pause_s = max(0.0, timing.started_s - self._busy_since_s)
        self._busy_since_s = timing.ended_s if more else None
        sizes: _Sizes | None = None
        while self._in_flight and sizes is None:  # one that never ended is dropped
            sent, found = self._in_flight.popleft()
            sizes = found if sent is plan else None
        if sizes is not None and timing.timed:
            row = {
                **sizes,
                "seconds": round(timing.ended_s - timing.started_s, 6),
                "pause_s": None if pause_s is None else round(pause_s, 6),
            }
            self._write(row)

    def close(self) -> None:
        """The engine stops."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _write(self, row: Mapping[str, object]) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(json.dumps(row, separators=(",", ":")) + "\n")
            self._unflushed += 1
            if self._unflushed >= _FLUSH_STEPS:
                self._unflushed = 0
                self._stream.flush()
                if self._stream.tell() > self._most_bytes:
                    self._stop(f"it has {self._most_bytes} bytes")
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _stop(self, reason: str) -> None:
        _log.warning("weir.step_recording_ended", path=str(self._path), reason=reason)
        try:
            self.close()
        except OSError:  # the last lines of a full disk
            self._stream = None


def _ends_amid_a_line(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as stream:
        stream.seek(-1, SEEK_END)
        return stream.read() != b"\n"
