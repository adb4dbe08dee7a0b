"""Whole simulations: the production scheduler in virtual time."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from tests.engine.sim.runs import POLICY, SHAPE, SLOS, Watched, offline, online, replica, watching
from weir_engine.config import Policy
from weir_engine.ids import RequestClass, RequestId
from weir_engine.sched.account import Account, QuietAccount, StepTimes
from weir_engine.sched.budget import SloBudget
from weir_engine.sched.scheduler import Scheduler
from weir_engine.sim.records import SimResult
from weir_engine.sim.report import bound, summarise
from weir_engine.sim.workload import RequestSpec, Segment


@cache
def simulated(seed: int = 0) -> tuple[SimResult, Watched]:
    """One run a seed, shared by the tests that only read it."""
    return simulate(seed)


def simulate(seed: int = 0) -> tuple[SimResult, Watched]:
    seen: list[Watched] = []
    made = replica(seed)
    result = made.simulate(
        online=online(seed),
        offline=offline(seed),
        until_s=30.0,
        planner=watching(made.scheduler, seen),
    )
    return result, seen[0]


def test_the_same_seed_gives_the_same_plans_and_times() -> None:
    """Design §3, invariant 5."""
    first, watched = simulated()
    second, again = simulate()
    assert len(watched.plans) > 200
    assert watched.plans == again.plans
    assert first == second


def test_another_seed_gives_other_times() -> None:
    assert simulated(0)[0] != simulated(1)[0]


def test_every_online_request_gets_all_its_tokens_in_order() -> None:
    """Invariant 2: every request ends exactly once; the KV sums are checked after every step."""
    result, watched = simulated()
    wanted = {spec.id: spec for spec in online()}
    assert sorted(record.id for record in result.online) == sorted(wanted)
    for record in result.online:
        assert len(record.tokens_s) == wanted[record.id].output_tokens
        assert list(record.tokens_s) == sorted(record.tokens_s)
        assert record.tokens_s[0] > record.arrival_s
        assert record.prompt_tokens == wanted[record.id].prompt_tokens
    assert result.offline_finished > 50
    assert watched.kv.offline_only_blocks <= POLICY.offline_kv_blocks


def test_steps_follow_each_other_and_are_in_the_past_of_their_tokens() -> None:
    result, _ = simulated()
    for before, after in zip(result.steps, result.steps[1:], strict=False):
        assert before.started_s < before.ended_s <= after.started_s + 1e-9
    ends = {step.ended_s for step in result.steps}
    assert all(token_s in ends for record in result.online for token_s in record.tokens_s)


LATE = RequestSpec(
    id=RequestId("on-late"),
    klass=RequestClass.ONLINE,
    arrival_s=1.0,
    segments=(Segment(key="late", tokens=8),),
    output_tokens=2,
)


def test_an_arrival_waits_for_the_queued_step_too() -> None:
    made = replace(replica(), queued=1)
    result = made.simulate(online=(LATE,), offline=offline(), until_s=3.0)
    (record,) = result.online
    (under_way,) = [step for step in result.steps if step.started_s < 1.0 < step.ended_s]
    ends = [step.ended_s for step in result.steps if step.started_s >= under_way.started_s]
    assert record.tokens_s[0] == ends[2]  # of the one under way, the queued one, and its own


@pytest.mark.parametrize("queued", [0, 1])
def test_accounts_hear_behind_which_step_another_was_queued(queued: int) -> None:
    heard: list[StepTimes] = []

    class Listening(QuietAccount):
        def on_step(self, times: StepTimes) -> None:
            heard.append(times)

    class Budget(SloBudget):
        @property
        def accounts(self) -> Sequence[Account]:
            return (Listening(),)

    made = replace(replica(), queued=queued, budget=lambda model: Budget(SLOS, model))
    made.simulate(online=online(), offline=offline(), until_s=4.0)
    pairs = list(pairwise(heard))
    behind = [after.behind_s == pytest.approx(before.duration_s) for before, after in pairs]
    alone = [times.behind_s == 0.0 for times in heard]
    assert all(behind[5:50]) if queued else all(alone)


def test_with_a_queued_step_every_request_gets_its_tokens_and_blocks_are_kept() -> None:
    seen: list[Watched] = []
    made = replace(replica(), queued=1)
    result = made.simulate(
        online=online(), offline=offline(), until_s=30.0, planner=watching(made.scheduler, seen)
    )
    wanted = {spec.id: spec for spec in online()}
    assert sorted(record.id for record in result.online) == sorted(wanted)
    for record in result.online:
        assert len(record.tokens_s) == wanted[record.id].output_tokens
        assert list(record.tokens_s) == sorted(record.tokens_s)
    for before, after in pairwise(result.steps):
        assert before.ended_s <= after.started_s + 1e-9
    assert result.offline_finished > 50


def test_an_arrival_during_a_step_waits_for_its_end() -> None:
    result = replica().simulate(online=(LATE,), offline=offline(), until_s=3.0)
    (record,) = result.online
    under_way = [step for step in result.steps if step.started_s < 1.0 < step.ended_s]
    assert len(under_way) == 1
    assert record.tokens_s[0] > under_way[0].ended_s


def test_served_tokens_count_each_token_of_a_request_once() -> None:
    """With everything finished, served is prompts plus outputs, whatever was cached or lost."""
    specs = offline(count=6)
    result = replica().simulate(offline=specs, until_s=60.0)
    assert result.offline_finished == len(specs)
    # The last output token of a request is never computed: nothing comes after it.
    known = sum(spec.prompt_tokens + spec.output_tokens - 1 for spec in specs)
    served = sum(step.offline_served_tokens for step in result.steps)
    computed = sum(step.offline_computed_tokens for step in result.steps)
    assert served == known
    assert computed < known  # documents are shared


def test_preempted_requests_are_served_once_and_keep_their_tokens() -> None:
    """Invariant 4: a small cache under an online burst forces preemption."""
    seen: list[Watched] = []
    made = replica()
    burst = online(3, rate_s=12.0, seconds=6.0)
    specs = offline(3, count=12)
    result = made.simulate(
        online=burst, offline=specs, until_s=200.0, planner=watching(made.scheduler, seen)
    )
    assert result.preemptions > 0
    assert result.offline_finished == len(specs)
    assert len(result.online) == len(burst)
    known = sum(spec.prompt_tokens + spec.output_tokens - 1 for spec in specs)
    assert sum(step.offline_served_tokens for step in result.steps) == known
    assert all(r.output_tokens == r.max_output_tokens for r in seen[0].requests)


def test_time_does_not_stand_still_where_one_gives_way_and_nothing_else_happens() -> None:
    """Two outgrow a threshold that was lowered, without online traffic: one gives way."""
    specs = tuple(
        RequestSpec(
            id=RequestId(f"off{number}"),
            klass=RequestClass.OFFLINE,
            arrival_s=0.0,
            segments=(Segment(key=f"off{number}", tokens=160),),
            output_tokens=100,
        )
        for number in range(2)
    )
    seen: list[Watched] = []
    made = replica(slos=())
    simulation = made.simulation(offline=specs, planner=watching(made.scheduler, seen))
    simulation.advance(0.5)
    scheduler = seen[0].inner
    assert isinstance(scheduler, Scheduler)
    assert len(scheduler.state.running_offline) == 2
    scheduler.set_policy(Policy(offline_kv_blocks=20, offline_seq_slots=8))
    simulation.advance(60.0)
    assert simulation.result().offline_finished == 2


def test_weir_holds_a_tail_slo_while_offline_work_flows() -> None:
    result, _ = simulated()
    summary = summarise(result, from_s=2.0, to_s=20.0)
    assert summary.latencies.statistic(SLOS[0].metric, "p99") <= SLOS[0].threshold_s
    assert summary.served_tokens_s > 500
    assert summary.error < 0.12


def test_without_offline_work_the_replica_is_idle_between_arrivals() -> None:
    result = replica().simulate(online=online(), until_s=30.0)
    summary = summarise(result, from_s=0.0, to_s=20.0)
    assert summary.served_tokens_s == 0
    assert 0 < summary.online_share < summary.busy < 0.9
    assert result.ended_s == pytest.approx(30.0, abs=0.5)


def test_the_bound_is_the_ceiling_less_fixed_cost_and_online_share() -> None:
    assert bound(fixed_s=0.0075, step_limit_s=0.075, online_share=0.12) == pytest.approx(0.78)
    assert bound(fixed_s=0.0075, step_limit_s=None, online_share=0.12) == pytest.approx(0.88)
    assert bound(fixed_s=0.5, step_limit_s=0.2, online_share=0.0) == 0.0


def test_the_shape_of_the_engine_is_never_exceeded() -> None:
    _, watched = simulated()
    for plan in watched.plans:
        assert sum(work.tokens for work in plan.work) <= SHAPE.max_batched_tokens
        assert len(plan.work) <= SHAPE.max_seqs
