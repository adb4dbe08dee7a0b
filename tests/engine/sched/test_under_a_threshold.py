"""Offline work under a threshold, beside an online request that decodes all the time.

Blocks of four tokens.
"""

import pytest

from tests.engine.sched.mini_engine import OPEN_POLICY, MiniEngine, request
from weir_engine.config import Metric, Policy, Slo

SLOS = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.1),
)


def busy(preset: str, *, blocks: int = 99) -> MiniEngine:
    """An engine with an online request that goes on to the end of each test."""
    engine = MiniEngine(
        slos=SLOS,
        blocks=200,
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


@pytest.mark.parametrize("preset", ["weir", "echo"])
def test_nobody_is_thrown_out_for_those_that_do_not_fit_either(preset: str) -> None:
    """What it computed is kept until the threshold rises."""
    engine = busy(preset, blocks=4)
    offline(engine, (12, 20), (40, 4))
    assert not ended_beside(engine)
    engine.scheduler.set_policy(OPEN_POLICY)
    assert ended_beside(engine, 60) == {"off0", "off1"}
    assert not engine.scheduler.counters.preemptions
