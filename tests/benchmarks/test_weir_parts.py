"""The parts of preset weir: every variant runs, and is what its name says."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from benchmarks import engine_builds
from benchmarks.engine_builds import CompiledEngineError
from benchmarks.papers.ablation import AT_ONCE, NO_ROOM, PROMPTS_ALONE, without
from benchmarks.weir_parts.run import run
from benchmarks.weir_parts.variants import Cell
from benchmarks.weir_parts.victims import CHOICES
from tests.engine.sim.runs import SHAPE, offline, online, replica
from weir_engine.sched import online_phase


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_of_victims_serves_online_requests_that_lack_blocks(name: str) -> None:
    scarce = replace(replica(), shape=replace(SHAPE, total_blocks=70))
    arrivals = online(rate_s=4.0)
    with patch.object(online_phase, "offline_victims", CHOICES[name]):
        result = scarce.simulate(online=arrivals, offline=offline(), until_s=120.0)
    assert len(result.online) == len(arrivals)
    assert result.preemptions > 0


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
