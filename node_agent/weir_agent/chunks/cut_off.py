"""Lines that the engine ended without an answer, as it does when it ends itself.

An engine can also be told to abort what it runs, and go on. Which of the two it is, its next
answers show; until then no line may follow these. Runs nothing: that is the feeder's.
"""

from __future__ import annotations

from weir_agent.chunks.held import HeldChunk
from weir_agent.engine import OfflineLine

ENOUGH_ANSWERS = 2  # the first may have been on its way when the engine ended the lines


class CutOff:
    """The lines, until the engine is seen to live. They stay in the crash journal meanwhile."""

    def __init__(self) -> None:
        self._lines: list[tuple[HeldChunk, OfflineLine]] = []
        self._answers = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._lines)

    def add(self, chunk: HeldChunk, line: OfflineLine) -> None:
        """The engine ended one more."""
        self._lines.append((chunk, line))
        self._answers = 0

    def engine_answers(self) -> None:
        """It took a policy: an engine that is ending takes none."""
        self._answers += 1

    def take(self) -> list[tuple[HeldChunk, OfflineLine]]:
        """The lines to run again, taken out; none while the engine may be ending."""
        if self._answers < ENOUGH_ANSWERS:
            return []
        lines, self._lines = self._lines, []
        return lines
