"""Weir without one of its parts: arms that say what the part is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from benchmarks.engine_builds import must_be_interpreted
from weir_engine.sched import ttft_account
from weir_engine.sched.gathering import PromptGathering
from weir_engine.sched.online_room import OnlineRoom

PROMPTS_ALONE = "weir, prompts alone"
"""No offline work in a step while an online prompt waits."""
NO_ROOM = "weir, no room kept"
"""Offline requests are admitted into every free KV block."""
AT_ONCE = "weir, prompts at once"
"""Offline prompts join as soon as a slot is free, in steps of any size."""

_PARTS: dict[str, tuple[tuple[object, str, object], ...]] = {
    PROMPTS_ALONE: ((ttft_account, "beside_prompts_s", 0.0),),
    NO_ROOM: ((OnlineRoom, "spare_blocks", 0.0),),
    AT_ONCE: ((PromptGathering, "waits", False), (PromptGathering, "short", False)),
}


@contextmanager
def without(arm: str) -> Iterator[None]:
    """While it is entered, preset `weir` is as the arm's name says; unchanged for other names.

    Raises:
        CompiledEngineError: the arm takes a part away, and the engine is compiled.
    """
    parts = _PARTS.get(arm, ())
    if parts:
        must_be_interpreted(f"arm {arm!r}")
    with ExitStack() as stack:
        for owner, name, value in parts:
            stack.enter_context(patch.object(owner, name, _constant(value)))
        yield


def _constant(value: object) -> Callable[..., object]:
    return lambda *_, **__: value
