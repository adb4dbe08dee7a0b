"""Weir without one of its parts: arms that say what the part is worth.

Run: python -m benchmarks.papers.ablation JSON, as ``interpreted`` does; prints a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks import engine_builds
from benchmarks.engine_builds import must_be_interpreted, run_in
from weir_engine.sched import tbt_account, tbt_tail, ttft_account, ttft_tail
from weir_engine.sched.gathering import PromptGathering
from weir_engine.sched.online_room import OnlineRoom
from weir_engine.sched.ttft_account import MeanTtftAccount

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PROMPTS_ALONE = "weir, prompts alone"
"""No offline work in a step while an online prompt waits."""
NO_ROOM = "weir, no room kept"
"""Offline requests are admitted into every free KV block."""
AT_ONCE = "weir, prompts at once"
"""Offline prompts join as soon as a slot is free, in steps of any size."""
NOTHING_KEPT = "weir, nothing kept"
"""None of a tolerance is kept for what offline work costs a live engine unseen."""


def _constant(value: object) -> Callable[..., object]:
    return lambda *_, **__: value


_PARTS: dict[str, tuple[tuple[object, str, object], ...]] = {
    PROMPTS_ALONE: ((ttft_tail, "beside_prompts_s", _constant(0.0)),),
    NO_ROOM: ((OnlineRoom, "spare_blocks", _constant(0.0)),),
    AT_ONCE: (
        (PromptGathering, "waits", _constant(value=False)),
        (PromptGathering, "short", _constant(value=False)),
    ),
    NOTHING_KEPT: (
        (ttft_account, "_TOLERANCE_SHARE", 1.0),
        (MeanTtftAccount, "_kept_of_threshold", 0.0),
        (ttft_tail, "KEPT_OF_THRESHOLD", 0.0),
        (tbt_account, "_KEPT_OF_TOLERANCE", 0.0),
        (tbt_account, "_KEPT_OF_THRESHOLD", 0.0),
        (tbt_tail, "_KEPT", 0.0),
    ),
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
            stack.enter_context(patch.object(owner, name, value))
        yield


def runs_apart(arm: str) -> bool:
    """True where the arm takes a part away and the engine of this process is compiled."""
    return arm in _PARTS and engine_builds.this_build() != "interpreted"


def interpreted(module: str, setup: DataclassInstance, arm: str, *more: int) -> dict[str, Any]:
    """What ``module.simulate(setup, arm, *more)`` comes to on the interpreted engine, as JSON.

    It runs in a process of its own. ``setup`` is the module's ``Setup``: plain values, and the
    folder ``data``.

    Raises:
        RuntimeError: the run failed; its own errors are on stderr.
    """
    plain = asdict(setup)
    plain["data"] = str(Path(plain["data"]).resolve())
    given = json.dumps({"module": module, "setup": plain, "arm": arm, "more": more})
    outcome: dict[str, Any] = run_in("interpreted", "benchmarks.papers.ablation", [given])[
        "outcome"
    ]
    return outcome


def main(given: dict[str, Any]) -> dict[str, Any]:
    """One run in this process; the build of the engine beside what it came to."""
    module = importlib.import_module(given["module"])
    setup = module.Setup(**given["setup"] | {"data": Path(given["setup"]["data"])})
    outcome = module.simulate(setup, given["arm"], *given["more"])
    return {"build": engine_builds.this_build(), "outcome": asdict(outcome)}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
