"""The parts of preset weir: what stands in for one really decides, and is what its name says."""

from contextlib import ExitStack

import pytest

from benchmarks import engine_builds
from benchmarks.engine_builds import CompiledEngineError
from benchmarks.papers.ablation import AT_ONCE, NO_ROOM, NOTHING_KEPT, PROMPTS_ALONE, without
from benchmarks.weir_parts.run import run
from benchmarks.weir_parts.variants import VARIANTS, Cell
from tests.engine.sched.mini_engine import MiniEngine, exact_model, request
from weir_engine.config import Metric, Slo
from weir_engine.sched.account import OnlineLoad
from weir_engine.sched.tbt_account import MeanTbtAccount
from weir_engine.sched.tbt_tail import TailTbtAccount
from weir_engine.sched.ttft_account import MeanTtftAccount
from weir_engine.sched.ttft_tail import TailTtftAccount


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


def _slo(metric: Metric, statistic: str) -> Slo:
    return Slo(metric=metric, statistic=statistic, threshold_s=0.110, reference_s=0.100)


def _spends() -> dict[str, float]:
    """Seconds that each account leaves to offline work, of a tolerance of 10 ms."""
    mean_tbt = MeanTbtAccount(_slo(Metric.TBT, "mean"))
    mean_tbt.on_token(0.100, 0.0)
    ttft = TailTtftAccount(_slo(Metric.TTFT, "p99")).step_limit(OnlineLoad(now_s=0.0))
    load = OnlineLoad(now_s=0.0, decoders=1, earliest_token_s=0.0)
    tbt = TailTbtAccount(_slo(Metric.TBT, "p99"), exact_model()).step_limit(load)
    return {
        "mean TBT": mean_tbt.bank_s,
        "mean TTFT": MeanTtftAccount(_slo(Metric.TTFT, "mean")).wait_s,
        "p99 TTFT": ttft.seconds,
        "p99 TBT": tbt.seconds - 0.100,
    }


def test_with_nothing_kept_all_of_a_tolerance_is_spent() -> None:
    kept = _spends()
    with without(NOTHING_KEPT):
        spent = _spends()
    assert spent == {statistic: pytest.approx(0.010, rel=0.06) for statistic in kept}
    assert all(seconds < 0.009 for seconds in kept.values())
    assert _spends() == kept


@pytest.mark.parametrize("arm", [PROMPTS_ALONE, NO_ROOM, AT_ONCE, NOTHING_KEPT])
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
