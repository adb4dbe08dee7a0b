"""What is said of an object whose stored spec this version cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import ValidationError

from weir_operator.planning.conditions import Finding, conditions_of, events, written
from weir_operator.planning.reasons import Reason
from weir_operator.planning.types import Manifest, Plan


def plan_unreadable(
    live: Manifest, error: ValidationError, *, reasons: Sequence[Reason], now: datetime
) -> Plan:
    """Changes nothing but the conditions of ``reasons``, which name the field."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(["spec", *(str(part) for part in first["loc"])])
    message = f"{place}: {first['msg']}: correct the field"
    findings = [Finding(reason=reason, message=message) for reason in reasons]
    generation = live["metadata"].get("generation", 0)
    changed = written(findings, live=live, generation=generation, now=now)
    told = {reason.condition for reason in reasons}
    kept = [item for kind, item in conditions_of(live).items() if kind not in told]
    status = dict(live.get("status") or {}) | {
        "observedGeneration": generation,
        "conditions": [*changed, *(dict(item) for item in kept)],
    }
    return Plan(
        status=None if status == live.get("status") else status, events=events(findings, live=live)
    )
