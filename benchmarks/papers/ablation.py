"""Weir without one of its parts, or with one more: arms that say what the part is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from typing import Any
from unittest.mock import patch

from weir_engine.config import Policy
from weir_engine.request import Request
from weir_engine.sched import ttft_account
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.offline_phase import OfflinePhase

PROMPTS_ALONE = "weir, prompts alone"
"""No offline work in a step while an online prompt waits."""
ANY_MEMORY = "weir, any memory"
"""Steps are as long where online requests fill the KV memory as elsewhere."""
GATHERED = "weir, prompts gathered"
"""Prompts wait until several slots are free; steps with offline prompts hold few tokens."""

# One in so many of the offline slots has to be free, unless the step has prompts anyway.
_GATHERED_SLOTS = 16
# Tokens of a step with offline prompts: beyond, tokens of prompts take a quarter longer each on
# profile `a100-40gb-llama-3.1-8b`. A shorter piece of a prompt is not worth a place.
_STEP_TOKENS = 512
_LEAST_CHUNK_TOKENS = 8

_PARTS: dict[str, tuple[str, float]] = {
    PROMPTS_ALONE: ("beside_prompts_s", 0.0),
    ANY_MEMORY: ("memory_limit_s", inf),
}


def without(arm: str) -> AbstractContextManager[Any]:
    """While it is entered, preset `weir` is as the arm's name says; unchanged for other names."""
    if arm == GATHERED:
        return _gathered()
    if arm not in _PARTS:
        return nullcontext()
    name, value = _PARTS[arm]
    return patch.object(ttft_account, name, lambda *_, **__: value)


@contextmanager
def _gathered() -> Iterator[None]:
    admit, cut = (getattr(OfflinePhase, name) for name in ("_admissions", "_chunk"))

    def admissions(
        phase: OfflinePhase,
        draft: StepDraft,
        policy: Policy,
        running: list[Request],
        *rest: float,
        **how: bool,
    ) -> None:
        free = min(draft.seqs_left, policy.offline_seq_slots - draft.offline_seqs)
        if draft.prefill_requests or free * _GATHERED_SLOTS >= len(running):
            admit(phase, draft, policy, running, *rest, **how)

    def chunk(
        phase: OfflinePhase, draft: StepDraft, request: Request, *rest: float, **how: bool
    ) -> int:
        room = _STEP_TOKENS - draft.shape.tokens
        if room < _LEAST_CHUNK_TOKENS:
            return 0
        tokens: int = cut(phase, draft, request, *rest, **how)
        return min(tokens, room)

    with (
        patch.object(OfflinePhase, "_admissions", admissions),
        patch.object(OfflinePhase, "_chunk", chunk),
    ):
        yield
