"""Plans one LLMService."""

from __future__ import annotations

from weir_operator.planning.observed import ObservedLLMService
from weir_operator.planning.types import Plan


def plan_llmservice(observed: ObservedLLMService) -> Plan:
    """What the LLMService should have. Never writes for one that is being deleted."""
    if observed.service["metadata"].get("deletionTimestamp"):
        return Plan()
    return Plan()
