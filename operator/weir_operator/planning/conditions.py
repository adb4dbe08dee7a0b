"""Conditions: from what holds now and what was written before to what is written next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weir_operator.api.conditions import MAX_MESSAGE_CHARS
from weir_operator.planning.reasons import Reason
from weir_operator.planning.types import EventNote, Manifest


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What holds of one condition now. Messages must not change with every look: no counters."""

    reason: Reason
    message: str


def rfc3339(at: datetime) -> str:
    """A time as the API server writes it: UTC, whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def conditions_of(live: Manifest) -> Mapping[str, Mapping[str, Any]]:
    """The conditions that an object has, by type."""
    status = live.get("status") or {}
    return {item["type"]: item for item in status.get("conditions") or ()}


def written(
    findings: Iterable[Finding], *, live: Manifest, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The condition list. A condition keeps its transition time while its status is the same."""
    before = conditions_of(live)
    return [
        _condition(finding, before.get(finding.reason.condition), generation, now)
        for finding in findings
    ]


def events(findings: Sequence[Finding], *, live: Manifest) -> tuple[EventNote, ...]:
    """An Event for each condition whose status or reason is new, where the reason is worth one."""
    before = conditions_of(live)
    notes = []
    for finding in findings:
        reason, known = finding.reason, before.get(finding.reason.condition, {})
        same = known.get("status") == reason.status and known.get("reason") == reason.name
        if reason.event is not None and not same:
            notes.append(
                EventNote(
                    type=reason.event,
                    reason=reason.name,
                    message=finding.message or reason.says,
                )
            )
    return tuple(notes)


def stands_s(condition: Mapping[str, Any], *, at_most_s: float, now: datetime) -> float | None:
    """What is left of ``at_most_s`` since the condition's transition; None: nothing.

    Of a transition in the future, as after a step of the clock, and of a time that somebody else
    wrote and that cannot be read, nothing is left: neither may hold a condition for ever.
    """
    try:
        since = datetime.fromisoformat(condition["lastTransitionTime"])
        since_s = (now - since).total_seconds()
    except (KeyError, TypeError, ValueError):
        return None
    return at_most_s - since_s if 0 <= since_s < at_most_s else None


def bounded(message: str) -> str:
    """The message, cut to what a condition may hold."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    return message[: MAX_MESSAGE_CHARS - 1] + "…"


def _condition(
    finding: Finding, before: Mapping[str, Any] | None, generation: int, now: datetime
) -> dict[str, Any]:
    reason = finding.reason
    kept = before is not None and before.get("status") == reason.status
    return {
        "type": reason.condition,
        "status": reason.status,
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before and kept else rfc3339(now),
        "reason": reason.name,
        "message": bounded(finding.message),
    }
