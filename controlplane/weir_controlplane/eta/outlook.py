"""What is expected of each running batch, as this replica last worked it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOutlook:
    """What is expected of one batch. Times are seconds since 1970.

    ``end_at``: when its last line is expected; while no pod can take its lines, as if one began
    now. ``eta_at``: the same, None while no pod can. ``stuck``: pods could, and none is committed.
    """

    end_at: float
    eta_at: float | None
    waiting_reason: str | None
    deadline_at: float
    stuck: bool = False


class Outlook:
    """The newest expectations, by batch."""

    def __init__(self) -> None:
        self.batches: Mapping[str, BatchOutlook] = {}

    def of(self, batch_id: str) -> BatchOutlook | None:
        """What is expected of a batch; None when nothing is (yet)."""
        return self.batches.get(batch_id)
