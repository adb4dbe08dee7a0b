"""Fleets share the work, capacity is found from below, and a run can be looked at as a trace."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.engine.sim.runs import SLOS, offline, online, replica
from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.sim.capacity import fewest_replicas, offline_tokens_a_day
from weir_engine.sim.chrome import chrome_events
from weir_engine.sim.fleet import Fleet, LeastTokens
from weir_engine.sim.loop import Feeder, Simulation
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile
from weir_engine.sim.records import SimResult
from weir_engine.sim.workload import RequestSpec


def make(number: int, feeder: Feeder) -> Simulation:
    return replica(seed=number).simulation(offline=feeder)


def fleet(
    replicas: int, *, arrivals: tuple[RequestSpec, ...], batch: tuple[RequestSpec, ...] = ()
) -> tuple[SimResult, ...]:
    made = Fleet(make, replicas=replicas, online=arrivals, offline=batch, window_size=8)
    for until_s in (10.0, 20.0, 60.0):
        made.advance(until_s)
    return made.results()


def test_every_request_runs_on_exactly_one_replica() -> None:
    arrivals = online(rate_s=6.0)
    results = fleet(3, arrivals=arrivals, batch=offline())
    ended = Counter(record.id for result in results for record in result.online)
    assert ended == Counter(spec.id for spec in arrivals)
    assert sum(result.offline_finished for result in results) == len(offline())
    assert min(len(result.online) for result in results) > len(arrivals) // 6


def test_more_replicas_answer_sooner() -> None:
    arrivals = online(rate_s=12.0)

    def mean_ttft(results: tuple[SimResult, ...]) -> float:
        times = [record.ttft_s for result in results for record in result.online]
        return sum(times) / len(times)

    assert mean_ttft(fleet(3, arrivals=arrivals)) < 0.5 * mean_ttft(fleet(1, arrivals=arrivals))


def test_a_fleet_of_one_is_that_replica() -> None:
    arrivals = online()
    alone = replica().simulation(online=arrivals)
    alone.advance(60.0)
    (together,) = fleet(1, arrivals=arrivals)
    assert together.online == alone.result().online


def test_a_fleet_knows_who_waits_for_the_end_of_an_answer() -> None:
    made = Fleet(make, replicas=2, online=online(), offline=(), window_size=8)
    first = online()[0]
    made.advance(first.arrival_s + 0.1)
    assert first.id in {record.id for record in made.unfinished()}
    made.advance(60.0)
    assert made.unfinished() == ()


def test_a_group_stays_until_its_replica_is_far_behind() -> None:
    router = LeastTokens(spill=2.0, slack_tokens=100)
    assert router.pick([500, 300], None) == 1
    assert router.pick([500, 300], 0) == 0
    assert router.pick([900, 300], 0) == 1
    arrivals = tuple(replace(spec, group="one") for spec in online(rate_s=0.5))
    results = fleet(2, arrivals=arrivals)
    assert sorted(len(result.online) for result in results) == [0, len(arrivals)]


def test_a_fleet_needs_a_replica() -> None:
    with pytest.raises(ConfigError, match="replicas is 0"):
        Fleet(make, replicas=0, online=(), offline=(), window_size=1)


def test_capacity_is_found_from_below() -> None:
    arrivals = online(rate_s=12.0)
    slos = (Slo(metric=Metric.TTFT, statistic="p90", threshold_s=0.1),)
    trials = fewest_replicas(
        lambda n: fleet(n, arrivals=arrivals), slos, arrivals=len(arrivals), most=6
    )
    assert [trial.replicas for trial in trials] == list(range(1, len(trials) + 1))
    assert [trial.holds for trial in trials] == [False] * (len(trials) - 1) + [True]
    assert 1 < len(trials) < 6


def test_an_impossible_objective_ends_at_the_most_replicas() -> None:
    slos = (Slo(metric=Metric.TTFT, statistic="p50", threshold_s=1e-6),)
    trials = fewest_replicas(lambda _: [], slos, arrivals=5, most=2)
    assert [(trial.holds, trial.unanswered) for trial in trials] == [(False, 5), (False, 5)]
    with pytest.raises(ConfigError, match="one or more"):
        fewest_replicas(lambda _: [], (), arrivals=5, most=2)


def test_requests_that_were_refused_are_not_answered() -> None:
    """design: a refused request counts as missed."""
    arrivals = online(rate_s=2.0)
    slos = (Slo(metric=Metric.TTFT, statistic="p90", threshold_s=60.0),)

    def refusing(replicas: int) -> tuple[SimResult, ...]:
        (result,) = fleet(1, arrivals=arrivals)
        refused, *answered = result.online
        kept = (replace(refused, tokens_s=()), *answered) if replicas == 1 else result.online
        return (replace(result, online=kept),)

    trials = fewest_replicas(refusing, slos, arrivals=len(arrivals), most=3)
    assert [(trial.unanswered, trial.holds) for trial in trials] == [(1, False), (0, True)]


def test_offline_tokens_scale_to_a_day() -> None:
    results = fleet(2, arrivals=(), batch=offline())
    served = sum(step.offline_served_tokens for result in results for step in result.steps)
    assert offline_tokens_a_day(results, span_s=60.0) == pytest.approx(served * 1440)


def test_only_steps_of_the_span_count_for_a_day() -> None:
    (result,) = fleet(1, arrivals=online(), batch=offline())
    span_s = result.steps[len(result.steps) // 2].ended_s
    kept = replace(result, steps=tuple(s for s in result.steps if s.ended_s <= span_s))
    assert len(kept.steps) < len(result.steps)
    assert offline_tokens_a_day([result], span_s=span_s) == pytest.approx(
        sum(step.offline_served_tokens for step in kept.steps) * 86_400 / span_s
    )


def test_a_run_as_a_chrome_trace() -> None:
    results = fleet(2, arrivals=online(), batch=offline())
    events = json.loads(json.dumps(list(chrome_events(results))))
    phases = Counter(event["ph"] for event in events)
    assert phases["M"] == 2
    assert phases["X"] == phases["C"] == sum(len(result.steps) for result in results)
    assert phases["b"] == phases["n"] == phases["e"] == len(online())
    assert all(event["dur"] > 0 for event in events if event["ph"] == "X")


def test_a_request_without_a_token_is_not_in_the_trace() -> None:
    (result,) = fleet(1, arrivals=online())
    empty = replace(result.online[0], tokens_s=())
    events = list(chrome_events([replace(result, steps=(), online=(empty,))]))
    assert [event["ph"] for event in events] == ["M"]


def test_the_module_wise_model_is_profiled_on_the_replica() -> None:
    profile = load_profile("rtx-pro-6000-llama-3.1-8b")
    shape = profile.engine_shape(max_batched_tokens=256, max_seqs=8, max_model_len_tokens=1024)
    made = replace(replica(), cost=ProfileCost(profile=profile), shape=shape, model="modulewise")
    result = made.simulate(online=online(), until_s=30.0)
    errors = [abs(s.predicted_s / (s.ended_s - s.started_s) - 1) for s in result.steps]
    assert sum(errors) / len(errors) < 0.03
    assert made.slos == SLOS
