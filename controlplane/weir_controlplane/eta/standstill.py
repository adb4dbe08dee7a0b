"""Which batches get nowhere although pods could take their lines: pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from weir_controlplane.levels import STALE_AFTER_S

STUCK_S = 900.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """A batch when it was last looked at. ``idle_s``: as `Standstill` counts."""

    able: bool
    committed_at: float
    idle_s: float


class Standstill:
    """Counts for how long pods could take the lines of each batch and none was committed.

    Leases do not count as progress. Time adds up while pods come and go: one that dies every few
    minutes can take lines only in between.
    """

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}  # of the batches that ran when they were looked at
        self._looked_s = 0.0

    def stuck(
        self, able: Mapping[str, bool], committed_at: Mapping[str, float], clock_s: float
    ) -> Collection[str]:
        """The running batches that got nowhere for `STUCK_S`.

        ``able``: whether a pod could take each one's lines now. ``committed_at``: when something
        of it was last committed, where anything was. ``clock_s`` is monotonic.
        """
        # Who did not look for so long had no database, and no pod could commit.
        step_s = clock_s - self._looked_s
        step_s = step_s if step_s <= STALE_AFTER_S else 0.0
        self._looks = {
            key: self._look(key, able=can, committed_at=committed_at.get(key, 0.0), step_s=step_s)
            for key, can in able.items()
        }
        self._looked_s = clock_s
        return {key for key, look in self._looks.items() if look.able and look.idle_s > STUCK_S}

    def _look(self, key: str, *, able: bool, committed_at: float, step_s: float) -> _Look:
        before = self._looks.get(key)
        idle_s = 0.0
        if before is not None and before.committed_at == committed_at:
            idle_s = before.idle_s + (step_s if able and before.able else 0.0)
        return _Look(able=able, committed_at=committed_at, idle_s=idle_s)
