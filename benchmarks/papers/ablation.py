"""Weir without one of its parts: arms of a paper's benchmark that say what the part is worth."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any
from unittest.mock import patch

from weir_engine.sched import ttft_account

PROMPTS_ALONE = "weir, prompts alone"
"""No offline work in a step while an online prompt waits."""
ANY_MEMORY = "weir, any memory"
"""Steps are as long where online requests fill the KV memory as elsewhere."""

_PARTS: dict[str, tuple[str, float]] = {
    PROMPTS_ALONE: ("beside_prompts_s", 0.0),
    ANY_MEMORY: ("memory_limit_s", inf),
}


def without(arm: str) -> AbstractContextManager[Any]:
    """While it is entered, preset `weir` lacks the part that the arm is named after, if any."""
    if arm not in _PARTS:
        return nullcontext()
    name, value = _PARTS[arm]
    return patch.object(ttft_account, name, lambda *_, **__: value)
