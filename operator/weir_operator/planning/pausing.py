"""Whether somebody asked that an object be left alone."""

from __future__ import annotations

from weir_operator.planning.kinds import GROUP
from weir_operator.planning.types import Manifest

PAUSED_ANNOTATION = f"{GROUP}/paused"
"""On an LLMService: the operator changes nothing of it but its status; on a BatchJob: nothing at
all, until it is deleted."""


def is_paused(live: Manifest) -> bool:
    """True with the annotation, unless it says "false".

    Who writes "True" or "yes" wants no change either, and would not be told of a typing error.
    """
    value = (live["metadata"].get("annotations") or {}).get(PAUSED_ANNOTATION)
    return value is not None and value.strip().lower() != "false"
