"""Offline work under a threshold, beside an online request that decodes all the time.

Blocks of four tokens; each state that keeps offline work out ends although online work goes on.
"""

import pytest

from tests.engine.sched.mini_engine import BLOCK, OPEN_POLICY, MiniEngine, request
from weir_engine.config import Metric, Policy, Slo
from weir_engine.presets import PRESETS

SLOS = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.1),
)


def busy(preset: str, *, blocks: int = 99, step_tokens: int = 64) -> MiniEngine:
    """An engine with an online request that goes on to the end of each test."""
    engine = MiniEngine(
        slos=SLOS,
        blocks=200,
        max_batched_tokens=step_tokens,
        preset=preset,
        static_budget_s=0.1,
        policy=Policy(offline_kv_blocks=blocks, offline_seq_slots=8),
    )
    engine.add(request("on", online=True, prompt=4, output=400))
    engine.step()
    return engine


def offline(engine: MiniEngine, *lengths: tuple[int, int]) -> None:
    """Prompt and output tokens of ``off0``, ``off1`` and so on, which come in that order."""
    for at, (prompt, output) in enumerate(lengths):
        new = request(f"off{at}", online=False, prompt=prompt, output=output)
        new.arrival_s = engine.now_s + at / 1000
        engine.add(new)


def ended_beside(engine: MiniEngine, steps: int = 300) -> set[str]:
    for _ in range(steps):
        engine.step()
    assert "on" in engine.live
    return set(engine.ended)


@pytest.mark.parametrize("preset", PRESETS)
class TestItGoesOn:
    def test_behind_one_that_is_longer_than_the_threshold(self, preset: str) -> None:
        engine = busy(preset, blocks=6)
        offline(engine, (40, 4), (8, 4))
        assert ended_beside(engine) == {"off1"}

    def test_behind_one_that_outgrows_it_alone(self, preset: str) -> None:
        engine = busy(preset, blocks=4)
        offline(engine, (12, 20), (8, 4))
        assert ended_beside(engine) == {"off1"}

    def test_where_two_do_not_fit_until_they_end(self, preset: str) -> None:
        """Five blocks each at the end, six in all: one after the other, none computed again."""
        engine = busy(preset, blocks=6)
        offline(engine, (8, 12), (8, 12))
        assert ended_beside(engine) == {"off0", "off1"}
        assert not engine.scheduler.counters.preemptions

    def test_where_two_are_stopped_by_a_lowered_threshold(self, preset: str) -> None:
        engine = busy(preset)
        offline(engine, (8, 12), (8, 12))
        engine.step()
        engine.scheduler.set_policy(Policy(offline_kv_blocks=5, offline_seq_slots=8))
        assert ended_beside(engine) == {"off0", "off1"}

    @pytest.mark.parametrize("prompt", [16, 40])
    def test_with_a_prompt_that_no_step_takes_whole(self, preset: str, prompt: int) -> None:
        engine = busy(preset, step_tokens=16)
        offline(engine, (prompt, 4), (8, 4))
        assert ended_beside(engine) == {"off0", "off1"}

    def test_with_a_prompt_that_takes_longer_than_an_online_token_may(self, preset: str) -> None:
        engine = busy(preset, step_tokens=128)
        offline(engine, (100, 4), (8, 4))
        assert ended_beside(engine) == {"off0", "off1"}

    def test_with_a_prompt_that_takes_longer_than_the_policy_allows(self, preset: str) -> None:
        engine = busy(preset)
        engine.abort("on")
        engine.scheduler.set_policy(
            Policy(offline_kv_blocks=99, offline_seq_slots=8, step_budget_s=0.05)
        )
        offline(engine, (60, 4), (8, 4))
        engine.run(60)
        assert engine.scheduler.state.requests == {}

    def test_behind_one_that_online_leaves_no_blocks_for(self, preset: str) -> None:
        """It fits the threshold, which more than online leaves: its turn is first for ever."""
        engine = MiniEngine(
            slos=SLOS,
            blocks=200,
            max_batched_tokens=64,
            preset=preset,
            static_budget_s=0.1,
            policy=Policy(offline_kv_blocks=150, offline_seq_slots=8),
        )
        engine.add(request("on", online=True, prompt=240, output=400))
        while engine.kv.free_blocks > 140:
            engine.step()
        offline(engine, (560, 4), *[(8, 4)] * 20)
        assert ended_beside(engine) == {f"off{at}" for at in range(1, 21)}


def test_a_bound_that_online_leaves_no_blocks_for_keeps_nobody_waiting() -> None:
    """Also where steps have had room for long, so that admissions count on others to end."""
    engine = busy("weir", blocks=6)
    engine.add(request("above", online=False, prompt=40, output=4, at=engine.now_s))
    for _ in range(200):
        engine.step()
    engine.add(request("bound", online=False, prompt=8, output=760, at=engine.now_s))
    engine.add(request("short", online=False, prompt=8, output=4, at=engine.now_s))
    assert engine.kv.free_blocks < (8 + 760) // BLOCK < engine.blocks
    assert ended_beside(engine, 80) == {"short"}


def test_one_that_online_leaves_no_blocks_for_at_its_end_starts_where_nobody_else_runs() -> None:
    """Also where admissions count on others to end: there are none, and it may end before."""
    engine = busy("weir", blocks=6)
    engine.add(request("long", online=True, prompt=200, output=400))
    engine.add(request("above", online=False, prompt=40, output=4, at=engine.now_s))
    for _ in range(200):
        engine.step()
    engine.abort("above")
    engine.scheduler.set_policy(OPEN_POLICY)
    new = engine.add(request("open", online=False, prompt=8, output=240, at=engine.now_s))
    assert new.known_tokens // BLOCK < engine.kv.free_blocks < (8 + 240) // BLOCK
    for _ in range(3):
        engine.step()
    assert new.output_tokens


@pytest.mark.parametrize("preset", ["weir", "bros", "bros-paged"])
def test_nobody_is_thrown_out_for_those_that_do_not_fit_either(preset: str) -> None:
    """What it computed is kept until the threshold rises."""
    engine = busy(preset, blocks=4)
    offline(engine, (12, 20), (40, 4))
    assert not ended_beside(engine)
    engine.scheduler.set_policy(OPEN_POLICY)
    assert ended_beside(engine, 60) == {"off0", "off1"}
    assert not engine.scheduler.counters.preemptions
