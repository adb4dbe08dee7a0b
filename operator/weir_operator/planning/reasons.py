"""What a reason of a condition is. Each kind has its own: `llmservice_reasons`, `job_reasons`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["True", "False", "Unknown"]
Severity = Literal["Normal", "Warning"]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a condition has its status. ``event``: the type of Event that its beginning is worth.

    ``name`` is a stable word for programs; ``says`` is its meaning in docs/crds.md.
    """

    condition: str
    status: Status
    name: str
    says: str
    event: Severity | None = None


def reasons_of(owner: type[object]) -> tuple[Reason, ...]:
    """Every reason among a class's attributes, in their order."""
    return tuple(value for value in vars(owner).values() if isinstance(value, Reason))
