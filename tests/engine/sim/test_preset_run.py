"""Presets and baselines in whole simulations, and what a decision's time costs."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.engine.sim.runs import POLICY, SHAPE, SLOS, offline, online, replica
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass
from weir_engine.kv.manager import KvManager
from weir_engine.presets import PRESETS
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sim.adaptive_prefill import AdaptivePrefill, AdaptiveSettings
from weir_engine.sim.preset_run import run_preset
from weir_engine.sim.records import SimResult
from weir_engine.sim.threshold import ForecastThreshold, PolicyPlanner, ThresholdSettings
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    Turns,
    conversations,
    document_questions,
    poisson_times,
)

CUMULATIVE = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.05),
)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_serves_all_online_requests_and_the_whole_set(preset: str) -> None:
    specs = offline(count=4)
    result = run_preset(
        replica(slos=CUMULATIVE),
        preset,
        online=online(),
        offline=specs,
        until_s=120.0,
        static_budget_s=0.05,
        threshold=ThresholdSettings(),
    )
    assert len(result.online) == len(online())
    assert result.offline_finished == len(specs)
    known = sum(spec.prompt_tokens + spec.output_tokens - 1 for spec in specs)
    assert sum(step.offline_served_tokens for step in result.steps) == known


def test_selection_by_benefit_computes_less_than_the_order_of_arrival() -> None:
    """Shuffled questions over documents that do not all fit: selection finds the families."""
    shuffled = tuple(sorted(offline(count=12), key=lambda spec: spec.id[::-1]))

    def computed(preset: str) -> int:
        made = replace(
            replica(slos=CUMULATIVE), policy=Policy(offline_kv_blocks=120, offline_seq_slots=16)
        )
        result = run_preset(made, preset, offline=shuffled, until_s=200.0)
        assert result.offline_finished == len(shuffled)
        return sum(step.offline_computed_tokens for step in result.steps)

    assert computed("echo") < 0.7 * computed("echo-estimator")


class TestConstantRate:
    def test_offline_requests_may_arrive_at_their_own_times(self) -> None:
        specs = tuple(replace(spec, arrival_s=2.0 * i) for i, spec in enumerate(offline(count=2)))
        result = run_preset(replica(), "sarathi", online=specs, until_s=60.0)
        assert result.offline_finished == len(specs)
        assert result.online == ()
        starts = [step.started_s for step in result.steps]
        assert min(abs(start_s - 18.0) for start_s in starts) < 1e-6


class TestDecisionTime:
    def run(self, *, plan_s: float, asynchronous: bool) -> SimResult:
        made = replace(replica(), plan_s=plan_s, asynchronous=asynchronous)
        return made.simulate(online=online(seconds=10.0), offline=offline(count=120), until_s=12.0)

    def served(self, result: SimResult) -> int:
        return sum(step.offline_served_tokens for step in result.steps)

    def test_an_asynchronous_decision_hides_its_time_behind_the_step(self) -> None:
        """HyGen A.1, Algorithm 2."""
        waiting = self.run(plan_s=0.01, asynchronous=False)
        hidden = self.run(plan_s=0.01, asynchronous=True)
        for before, after in pairwise(waiting.steps):
            assert after.started_s >= before.ended_s + 0.01 - 1e-9
        assert self.served(hidden) > 1.1 * self.served(waiting)

    def test_a_decision_over_more_requests_takes_longer(self) -> None:
        made = replace(replica(), plan_s=0.001, plan_request_s=0.002)
        result = made.simulate(online=online(seconds=4.0), offline=offline(count=40), until_s=6.0)
        pauses = [after.started_s - before.ended_s for before, after in pairwise(result.steps)]
        assert min(pauses) >= 0.003 - 1e-9
        assert max(pauses) > 0.02

    def test_what_arrives_during_the_decision_waits_for_one_more_step(self) -> None:
        hidden = self.run(plan_s=0.01, asynchronous=True)
        starts = sorted(step.started_s for step in hidden.steps)
        ends = {step.ended_s for step in hidden.steps}
        late = 0
        for request in hidden.online:
            following = next(s for s in starts if s >= request.arrival_s)
            if following in ends and following - request.arrival_s < 0.01:
                first_end = min(s.ended_s for s in hidden.steps if s.started_s == following)
                assert request.tokens_s[0] > first_end
                late += 1
        assert late > 0


class TestAdaptivePrefill:
    def make(self, settings: AdaptiveSettings) -> tuple[AdaptivePrefill, list[int]]:
        kv = KvManager(total_blocks=SHAPE.total_blocks, block_size_tokens=SHAPE.block_size_tokens)
        return AdaptivePrefill(SHAPE, kv, slos=SLOS, settings=settings), []

    def test_tokens_rise_while_latency_holds_and_halve_when_it_does_not(self) -> None:
        seen: list[tuple[int, bool]] = []
        settings = AdaptiveSettings(interval_s=0.5, least=32, most=512, step=32)

        class Noted(AdaptivePrefill):
            def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
                super().commit(plan, outcome)
                seen.append((self.step_tokens, outcome.ended_s - outcome.started_s > 0.06))

        result = replica().simulate(
            online=online(),
            offline=offline(),
            until_s=30.0,
            planner=lambda shape, kv: Noted(shape, kv, slos=SLOS, settings=settings),
        )
        tokens = [level for level, _ in seen]
        assert len(result.online) == len(online())
        changes = {after - before for before, after in pairwise(tokens)}
        assert 32 in changes
        assert any(change < 0 for change in changes)
        assert all(32 <= level <= 512 for level in tokens)

    def test_an_objective_is_needed(self) -> None:
        kv = KvManager(total_blocks=4, block_size_tokens=16)
        with pytest.raises(ConfigError, match="SLO"):
            AdaptivePrefill(SHAPE, kv, slos=(), settings=AdaptiveSettings())


class TestForecastThreshold:
    def policies(self, settings: ThresholdSettings) -> list[Policy]:
        """The policies that a run under online load sets."""
        given: list[Policy] = []
        made = replica()

        class Noted:
            def __init__(self, inner: PolicyPlanner) -> None:
                self.inner = inner

            def add(self, request: Request) -> None:
                self.inner.add(request)

            def plan(self, now_s: float) -> StepPlan:
                return self.inner.plan(now_s)

            def begin(self, plan: StepPlan) -> None:
                self.inner.begin(plan)

            def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
                self.inner.commit(plan, outcome)

            def set_policy(self, policy: Policy) -> None:
                given.append(policy)
                self.inner.set_policy(policy)

        def noted(shape: EngineShape, kv: KvManager) -> Noted:
            return Noted(made.scheduler(shape, kv))

        planner: Callable[[EngineShape, KvManager], ForecastThreshold] = ForecastThreshold.over(
            noted, made.policy, settings
        )
        made.simulate(online=online(rate_s=8.0), offline=offline(), until_s=30.0, planner=planner)
        return given

    def test_more_sigmas_leave_more_room_and_the_policy_is_the_most(self) -> None:
        """Echo §5.3: total less mean + k sigma of online's demand."""
        mild = self.policies(ThresholdSettings(interval_s=1.0, sigmas=0.0))
        wary = self.policies(ThresholdSettings(interval_s=1.0, sigmas=6.0))
        assert max(policy.offline_kv_blocks for policy in mild + wary) <= POLICY.offline_kv_blocks
        assert wary[-1].offline_kv_blocks < mild[-1].offline_kv_blocks
        assert all(policy.offline_seq_slots == POLICY.offline_seq_slots for policy in mild)

    def test_samples_beyond_the_window_are_forgotten(self) -> None:
        short = self.policies(ThresholdSettings(interval_s=1.0, window_s=1.0, sigmas=2.0))
        # One or two samples: nearly no spread, so the threshold follows the load of the moment.
        assert len({policy.offline_kv_blocks for policy in short}) > 3

    def online_hits(self, *, found_again: bool) -> int:
        """Tokens that conversations find in the cache beside a batch of unlike documents."""
        rng = np.random.default_rng(3)
        unlike = Documents(
            count=400,
            questions=1,
            document=Lengths(median=200, sigma=0.3, low=40, high=500),
            question=Lengths(median=20, sigma=0.3, low=5, high=60),
            output=Lengths(median=40, sigma=0.4, low=5, high=90),
        )
        talk = Lengths(median=24, sigma=0.3, low=8, high=60)
        turns = Turns(count=6, gap_s=8.0, message=talk, output=talk, longest_tokens=600)
        made, caches = replica(), list[KvManager]()

        def noted(shape: EngineShape, kv: KvManager) -> PolicyPlanner:
            caches.append(kv)
            return made.scheduler(shape, kv)

        settings = ThresholdSettings(interval_s=1.0, found_again=found_again)
        made.simulate(
            online=conversations(
                rng, poisson_times(rng, rate_s=0.15, duration_s=120.0), turns=turns
            ),
            offline=document_questions(np.random.default_rng(1), unlike),
            until_s=120.0,
            planner=ForecastThreshold.over(noted, made.policy, settings),
        )
        return caches[0].hit_counts(RequestClass.ONLINE).hit_tokens

    def test_what_conversations_find_again_is_left_to_them(self) -> None:
        """Decision 22."""
        kept = self.online_hits(found_again=True)
        assert kept > 1.1 * self.online_hits(found_again=False)

    def test_bad_settings_name_the_remedy(self) -> None:
        with pytest.raises(ConfigError, match="window_s"):
            ThresholdSettings(interval_s=10.0, window_s=1.0)
