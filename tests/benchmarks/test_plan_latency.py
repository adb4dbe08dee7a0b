"""What a plan costs is told beside the step that it plans (design.md §7)."""

from __future__ import annotations

from benchmarks.plan_latency import PROFILE, ClockEngine, share_of
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile


def test_a_plan_is_compared_with_its_own_step() -> None:
    engine = ClockEngine(pooled=300, seed=1)
    steps_s = [engine.step()[1] for _ in range(60)]
    assert min(steps_s) >= ProfileCost(profile=load_profile(PROFILE)).empty_step_s
    assert max(steps_s) > 10 * min(steps_s)  # prompts of thousands of tokens, and decodes alone


def test_the_share_is_that_of_the_median_run() -> None:
    runs = [{"p50_share": 0.002, "p99_share": share} for share in (0.004, 0.012, 0.006)]
    claim = share_of(50_000, "compiled", runs)
    assert (claim.id, claim.unit, claim.value) == ("plan/share-50000-compiled", "%", 0.6)
    assert (claim.low, claim.high, claim.met) == (0.4, 1.2, True)
