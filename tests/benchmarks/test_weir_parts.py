"""The parts of preset weir: what stands in for one really decides, and is what its name says."""

from contextlib import ExitStack

import pytest

from benchmarks import engine_builds
from benchmarks.engine_builds import CompiledEngineError
from benchmarks.papers.ablation import AT_ONCE, NO_ROOM, PROMPTS_ALONE, without
from benchmarks.weir_parts.run import run
from benchmarks.weir_parts.variants import VARIANTS, Cell
from tests.engine.sched.mini_engine import MiniEngine, request


@pytest.mark.parametrize(
    ("variant", "victim"), [("weir", "old"), ("victims-tail", "new"), ("victims-last", "new")]
)
def test_another_choice_of_victims_preempts_another_request(variant: str, victim: str) -> None:
    """The older one loses fewest tokens a block, the newer one fewest beyond its full blocks."""
    engine = MiniEngine(blocks=12, max_seqs=4)
    for name, prompt, at in (("old", 5, 0.0), ("new", 28, 0.001)):
        offline = engine.add(request(name, online=False, prompt=prompt, output=8, at=at))
        offline.expected_output_tokens = 1
    engine.step()
    engine.add(request("on", online=True, prompt=16, output=2, at=engine.now_s))
    with ExitStack() as stack:
        for enter in VARIANTS[variant]:
            stack.enter_context(enter())
        plan = engine.step()
    assert [gone.request_id for gone in plan.preempt] == [victim]


@pytest.mark.parametrize("arm", [PROMPTS_ALONE, NO_ROOM, AT_ONCE])
def test_parts_of_a_compiled_engine_are_not_taken_away(
    arm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run whole: the arm would show what the whole preset does, under its own name."""
    monkeypatch.setattr(engine_builds, "this_build", lambda: "compiled")
    with pytest.raises(CompiledEngineError, match="build/compiled"), without(arm):
        pass
    with without("weir"):
        pass


def test_variants_do_not_run_on_a_compiled_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_builds, "this_build", lambda: "compiled")
    cell = Cell(trace="azure", objective="p99-tbt", variant="no-feedback")
    with pytest.raises(CompiledEngineError, match="no-feedback"):
        run(cell, (), 1)
