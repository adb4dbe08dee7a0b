"""The two phases on KV blocks that an online and an offline request fill from both ends.

Worked examples of our own, in blocks of four tokens, without a prefix cache.
"""

from functools import partial

from tests.engine.sched.mini_engine import MiniEngine, request
from weir_engine.config import Metric, Slo
from weir_engine.kv.bidirectional import BidirectionalKvManager
from weir_engine.kv.manager import KvManager
from weir_engine.latency.swap import SwapModel
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.plan import StepPlan

TTFT = Slo(metric=Metric.TTFT, statistic="p90", threshold_s=2.0)
both_ends = partial(MiniEngine, manager=BidirectionalKvManager, prefix_cache=False)
paged = partial(MiniEngine, prefix_cache=False)


def names(plan: StepPlan) -> list[str]:
    return [work.request_id for work in plan.work]


def displaced(engine: MiniEngine) -> MiniEngine:
    """c fills three blocks when A comes, who needs two of them."""
    engine.add(request("c", online=False, prompt=8, output=3))
    engine.step()
    engine.add(request("A", online=True, prompt=8, output=2, at=engine.now_s))
    engine.step()
    return engine


class TestOnline:
    def test_takes_fronts_and_nothing_is_computed_again(self) -> None:
        engine = displaced(both_ends(blocks=3))
        assert names(engine.plans[-1]) == ["A"]
        assert engine.plans[-1].held == ("c",)
        engine.run()
        assert set(engine.ended) == {"A", "c"}
        assert any("c" in plan.restore for plan in engine.plans)
        assert all(not plan.preempt for plan in engine.plans)
        counters = engine.scheduler.counters
        assert counters.offline_computed_tokens == counters.offline_served_tokens

    def test_on_paged_blocks_offline_gives_way(self) -> None:
        engine = displaced(paged(blocks=3))
        assert [gone.request_id for gone in engine.plans[-1].preempt] == ["c"]
        engine.run()

    def test_a_decode_that_needs_a_block_takes_a_front(self) -> None:
        engine = both_ends(blocks=5)
        engine.add(request("A", online=True, prompt=8, output=6))
        engine.step()
        engine.add(request("c", online=False, prompt=8, output=3))
        engine.run()
        assert set(engine.ended) == {"A", "c"}
        assert all(not plan.preempt for plan in engine.plans)

    def test_where_a_slot_is_missing_offline_gives_way_all_the_same(self) -> None:
        engine = displaced(both_ends(blocks=8, max_seqs=1))
        assert [gone.request_id for gone in engine.plans[-1].preempt] == ["c"]
        engine.run()

    def test_where_fronts_are_not_enough_a_prompt_waits(self) -> None:
        engine = displaced(both_ends(blocks=3))
        engine.add(request("B", online=True, prompt=8, output=1, at=engine.now_s))
        assert names(engine.step()) == ["A"]
        engine.run()
        assert set(engine.ended) == {"A", "B", "c"}


class TestOffline:
    def test_what_lacks_a_block_keeps_others_from_joining(self) -> None:
        """c moves one block, which is not free: d, who would fit, is not admitted before c."""
        engine = displaced(both_ends(blocks=3))
        engine.add(request("d", online=False, prompt=2, output=1))
        engine.run()
        order = [name for plan in engine.plans for name in names(plan) if name in "cd"]
        last_c, first_d = len(order) - 1 - order[::-1].index("c"), order.index("d")
        assert first_d > order.index("c", 1)
        assert last_c >= 1

    def test_copies_longer_than_a_step_may_last_wait_for_one_that_may(self) -> None:
        """A second a slot, where a step beside D may take less: c waits until D has ended."""
        engine = displaced(both_ends(blocks=3, slot_s=1.0, slos=(TTFT,)))
        engine.add(request("D", online=True, prompt=1, output=6, at=engine.now_s))
        while "D" in engine.live:
            assert "c" not in names(engine.step())

    def test_copies_longer_than_any_step_do_not_wait_where_nobody_else_has_work(self) -> None:
        """A second a slot, and a step ends after 0.2 s where no objective bounds it."""
        engine = displaced(both_ends(blocks=3, slot_s=1.0))
        engine.run()
        assert set(engine.ended) == {"A", "c"}
        assert any("c" in plan.restore for plan in engine.plans)

    def test_a_step_that_is_full_brings_nobody_back(self) -> None:
        """Two tokens a step, one for each online request."""
        engine = both_ends(blocks=5, max_batched_tokens=2)
        engine.add(request("c", online=False, prompt=7, output=6))
        for _ in range(5):
            engine.step()
        for name in ("A", "B"):
            engine.add(request(name, online=True, prompt=4, output=8, at=engine.now_s))
        full = 0
        while len(engine.live) == 3:
            plan = engine.step()
            full += plan.online_shape.decode_requests == 2 and plan.held == ("c",)
        assert full > 1
        engine.run()
        assert any("c" in plan.restore for plan in engine.plans)

    def test_a_prompt_comes_back_in_the_middle(self) -> None:
        engine = both_ends(blocks=6, max_batched_tokens=8)
        engine.add(request("c", online=False, prompt=20, output=2))
        engine.step()
        engine.step()
        assert engine.live["c"].computed_tokens == 16
        engine.add(request("A", online=True, prompt=12, output=3, at=engine.now_s))
        engine.run()
        assert set(engine.ended) == {"A", "c"}
        restored = [plan for plan in engine.plans if "c" in plan.restore]
        assert restored
        assert any(work.tokens > 1 for work in restored[0].work if work.request_id == "c")
        assert all(not plan.preempt for plan in engine.plans)

    def test_as_many_join_as_hold_all_blocks_at_the_peak(self) -> None:
        """They begin with nine blocks and end with 14, but hold twelve at most at one time."""
        for make, joined in ((both_ends, ["a", "b", "c"]), (paged, ["a", "b"])):
            engine = make(blocks=12)
            for at, (name, output) in enumerate({"a": 2, "b": 12, "c": 2}.items()):
                engine.add(request(name, online=False, prompt=12, output=output, at=at / 1e6))
            assert names(engine.step()) == joined
            engine.run()
            assert all(not plan.preempt for plan in engine.plans)

    def test_a_decode_that_was_out_is_back_in_the_very_next_step(self) -> None:
        tight = Slo(metric=Metric.TTFT, statistic="p90", threshold_s=0.2, reference_s=0.19)
        engine = both_ends(blocks=64, slos=(tight,))
        for at in range(8):
            engine.add(request(f"c{at}", online=False, prompt=4, output=40))
        for _ in range(12):
            engine.step()
        engine.add(request("A", online=True, prompt=40, output=3, at=engine.now_s))
        engine.step()
        assert engine.plans[-1].held
        assert not set(engine.plans[-1].held) & set(engine.step().held)


def test_room_is_a_fifth_of_a_deviation_whatever_is_lost() -> None:
    engine = both_ends(blocks=100, max_batched_tokens=500, slos=(TTFT,))
    for at in range(4):
        engine.add(request(f"on{at}", online=True, prompt=62, output=50, at=at / 1000))
    while len(engine.scheduler.state.running_online) < 4:
        engine.step()
    # Of 100 blocks 64 are online's, and a fifth of 64 / sqrt(4) stays free: 29.6 are left.
    for at in range(8):
        engine.add(request(f"off{at}", online=False, prompt=20, output=1))
    free = engine.kv.free_blocks
    engine.step()
    assert 6 <= engine.kv.free_blocks < free


def test_paged_blocks_have_no_fronts() -> None:
    kv = KvManager(total_blocks=4, block_size_tokens=4)
    ends = BothEnds(kv, SwapModel())
    assert not ends.there
    assert ends.missing(request("c", online=False)).blocks == 0


def test_one_that_is_expected_to_outgrow_the_cache_runs_alone() -> None:
    """Lines without ``max_tokens`` are expected to be long; this one is not."""
    engine = both_ends(blocks=8)
    open_ended = engine.add(request("open", online=False, prompt=24, output=4))
    open_ended.expected_output_tokens = 256
    engine.add(request("next", online=False, prompt=8, output=4, at=0.001))
    engine.run()
