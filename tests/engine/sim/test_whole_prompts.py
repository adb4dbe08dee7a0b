"""Baselines with whole prompts: what shares a step, and whose turn it is."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.engine.sim.runs import SHAPE, Watched, offline, online, replica, watching
from weir_engine.config import EngineShape
from weir_engine.kv.manager import KvManager
from weir_engine.request import Request
from weir_engine.sim.records import SimResult
from weir_engine.sim.replica import PlannerFactory
from weir_engine.sim.whole_prompts import RoundRobin, WholePromptFcfs


def fcfs(*, mixed: bool) -> PlannerFactory:
    def make(shape: EngineShape, kv: KvManager) -> WholePromptFcfs:
        return WholePromptFcfs(shape, kv, mixed=mixed)

    return make


def run(planner: PlannerFactory, *, blocks: int = 60) -> tuple[SimResult, Watched]:
    """Offline work that fills the blocks, online requests beside it."""
    seen: list[Watched] = []
    small = replace(replica(), shape=replace(SHAPE, total_blocks=blocks), prefix_cache=False)
    result = small.simulate(
        online=online(rate_s=1.0, seconds=15.0),
        offline=offline(count=4, output=30),
        until_s=200.0,
        planner=watching(planner, seen),
    )
    return result, seen[0]


def prefills(watched: Watched) -> list[tuple[int, int]]:
    """(Requests that are admitted, requests that run already), a step."""
    counts = []
    for plan in watched.plans:
        admitted = sum(work.admitted for work in plan.work)
        counts.append((admitted, len(plan.work) - admitted))
    return counts


def test_a_prompt_is_never_cut() -> None:
    result, watched = run(fcfs(mixed=True))
    assert len(result.online) == len(online(rate_s=1.0, seconds=15.0))
    prompts: dict[str, Request] = {str(request.id): request for request in watched.requests}
    for plan in watched.plans:
        for work in plan.work:
            if work.admitted:
                assert work.tokens >= prompts[str(work.request_id)].prompt_tokens


def test_prompts_first_means_that_decodes_wait() -> None:
    """As vLLM without chunked prefill: a step has prompts or decodes, never both."""
    _, watched = run(fcfs(mixed=False))
    assert all(not (admitted and running) for admitted, running in prefills(watched))
    _, watched = run(fcfs(mixed=True))
    assert any(admitted and running for admitted, running in prefills(watched))


def test_the_latest_arrival_gives_way_for_blocks_and_still_ends() -> None:
    result, _ = run(fcfs(mixed=False), blocks=48)
    assert result.preemptions > 0
    assert result.offline_finished == 20


class TestRoundRobin:
    def test_the_classes_never_share_a_step_and_take_turns(self) -> None:
        result, watched = run(RoundRobin)
        assert result.offline_finished == 20
        online_ids = {record.id for record in result.online}
        turns: list[bool] = []
        for plan in watched.plans:
            classes = {work.request_id in online_ids for work in plan.work}
            assert len(classes) <= 1
            turns += classes
        both = sum(a != b for a, b in pairwise(turns))
        assert both > 0.3 * len(turns)

    def test_a_class_without_work_leaves_its_turn(self) -> None:
        seen: list[Watched] = []
        result = replica().simulate(
            offline=offline(count=2), until_s=60.0, planner=watching(RoundRobin, seen)
        )
        assert result.offline_finished == 10
        gaps = [b.started_s - a.ended_s for a, b in pairwise(result.steps)]
        assert max(gaps) == pytest.approx(0.0, abs=1e-9)
