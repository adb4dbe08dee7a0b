"""BROS's packing, batch size and queue polling on worked examples (ours: the paper has figures)."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.engine.sched.mini_engine import (
    BLOCK,
    MiniEngine,
    exact_model,
    request,
)
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.kv.bidirectional import BidirectionalKvManager
from weir_engine.kv.manager import KvManager
from weir_engine.latency.swap import SwapModel
from weir_engine.pool.simple_orders import FcfsOrder
from weir_engine.request import Request
from weir_engine.sched.batch_size import BatchSize, DoublingBatchSize, FixedBatchSize
from weir_engine.sched.budget import StaticBudget
from weir_engine.sched.order import Fcfs
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.priority_packing import PriorityPacking
from weir_engine.sched.remaining_time import RemainingTime
from weir_engine.sched.scheduler import Scheduler
from weir_engine.sched.seats import Seats


def slos(ttft_s: float = 1.0, tpot_s: float = 0.1) -> tuple[Slo, ...]:
    return (
        Slo(metric=Metric.TTFT, statistic="p90", threshold_s=ttft_s),
        Slo(metric=Metric.TPOT, statistic="p90", threshold_s=tpot_s),
    )


@dataclass
class Packed(MiniEngine):
    """The packing over paged or bidirectional blocks without a prefix cache."""

    batch: BatchSize | None = None
    swap_s: float = 0.0
    paged: bool = False
    prefix_cache: bool = False

    def __post_init__(self) -> None:
        self.slos = self.slos or slos()
        super().__post_init__()
        manager = KvManager if self.paged else BidirectionalKvManager
        self.kv = manager(
            total_blocks=self.blocks, block_size_tokens=BLOCK, prefix_cache=self.prefix_cache
        )
        shape = EngineShape(
            block_size_tokens=BLOCK,
            total_blocks=self.blocks,
            max_batched_tokens=self.max_batched_tokens,
            max_seqs=self.max_seqs,
            max_model_len_tokens=256,
        )
        model = exact_model()
        remaining = RemainingTime(self.slos, step_tokens=self.max_batched_tokens)
        tpot_s = min(slo.threshold_s for slo in self.slos if slo.metric is Metric.TPOT)
        batch = self.batch or FixedBatchSize(self.max_seqs)
        swap = SwapModel(slot_s=self.swap_s)
        self.scheduler = Scheduler(
            shape=shape,
            slos=self.slos,
            kv=self.kv,
            policy=self.policy,
            seats=Seats(
                model=model,
                budget=StaticBudget(float("inf")),
                order=Fcfs(),
                pool=FcfsOrder(),
                packing=lambda state: PriorityPacking(
                    state, model=model, remaining=remaining, batch=batch, swap=swap, tpot_s=tpot_s
                ),
            ),
        )


def names(plan: StepPlan) -> list[str]:
    return [str(work.request_id) for work in plan.work]


class TestReplacement:
    """A batch of two; online A is the more urgent, online B the less, offline c wants in."""

    def engine(self, ttft_s: float) -> Packed:
        engine = Packed(slos=slos(ttft_s=ttft_s), batch=FixedBatchSize(2))
        engine.add(request("A", online=True, prompt=8, at=-0.01))
        engine.add(request("B", online=True, prompt=8))
        engine.add(request("c", online=False, prompt=4))
        return engine

    def test_offline_takes_the_place_of_the_least_urgent_that_can_wait(self) -> None:
        """Algorithm 1, lines 25-29. A and c take 22 ms; B has 200 and needs one step more."""
        engine = self.engine(ttft_s=0.2)
        assert names(engine.step()) == ["A", "c"]
        assert names(engine.step())[0] == "A"  # 77 ms to its next token
        assert engine.live["B"].output_tokens == 0

    def test_nobody_is_replaced_who_would_miss_the_deadline(self) -> None:
        """A and B take 26 ms; with c in its place B would wait 22 ms and come too late."""
        engine = self.engine(ttft_s=0.045)
        engine.scheduler.commit(  # the average step takes 26 ms
            engine.scheduler.plan(0.0), _ended(0.0, 0.026)
        )
        assert names(engine.step()) == ["A", "B"]

    def test_the_batch_has_no_online_request_to_replace(self) -> None:
        engine = Packed(batch=FixedBatchSize(1))
        engine.add(request("c", online=False, prompt=4))
        engine.add(request("d", online=False, prompt=4, at=0.1))
        assert names(engine.step()) == ["c"]

    def test_everybody_ends(self) -> None:
        engine = self.engine(ttft_s=0.2)
        engine.run()
        assert set(engine.ended) == {"A", "B", "c"}


def _ended(started_s: float, ended_s: float) -> StepOutcome:
    return StepOutcome(started_s=started_s, ended_s=ended_s)


class TestTime:
    def test_a_running_offline_request_that_would_be_too_long_is_held(self) -> None:
        """A's decode takes 11 of 11.5 ms."""
        engine = Packed(slos=slos(tpot_s=0.0115))
        engine.add(request("c", online=False, prompt=4, output=9))
        engine.add(request("A", online=True, prompt=4, output=4))
        engine.step()
        plan = engine.step()
        assert names(plan) == ["A"]
        assert plan.held == ("c",)

    def test_prompts_that_do_not_fit_into_the_engines_step_wait(self) -> None:
        engine = Packed()
        engine.add(request("A", online=True, prompt=40))
        engine.add(request("B", online=True, prompt=40, at=0.01))
        engine.add(request("C", online=True, prompt=8, at=0.02))
        assert names(engine.step()) == ["A"]

    def test_the_batch_size_bounds_online_too(self) -> None:
        engine = Packed(batch=FixedBatchSize(1))
        engine.add(request("A", online=True, prompt=4))
        engine.add(request("B", online=True, prompt=4, at=0.01))
        assert names(engine.step()) == ["A"]

    def test_a_step_ends_before_the_most_urgent_deadline_that_can_be_met(self) -> None:
        """A alone takes 18 ms of its 20; B would make it 26, c 22."""
        engine = Packed(slos=slos(ttft_s=0.02))
        engine.add(request("A", online=True, prompt=8))
        engine.add(request("B", online=True, prompt=8))
        engine.add(request("c", online=False, prompt=4))
        plan = engine.step()
        assert names(plan) == ["A"]
        assert plan.limit_s == pytest.approx(0.02)
        assert plan.limit_reason == "least-remaining-late"

    def test_one_that_is_late_goes_first_and_bounds_nothing(self) -> None:
        engine = Packed(slos=slos(ttft_s=0.03))
        engine.now_s = 0.1
        engine.add(request("late", online=True, prompt=8, at=0.0))
        engine.add(request("B", online=True, prompt=8, at=0.1))
        plan = engine.step()
        assert names(plan) == ["late", "B"]
        assert plan.limit_s == pytest.approx(0.03)

    def test_with_all_late_only_the_engine_bounds_the_step(self) -> None:
        engine = Packed(slos=slos(ttft_s=0.001))
        for name in "ABC":
            engine.add(request(name, online=True, prompt=8))
        engine.add(request("d", online=False, prompt=8))
        assert names(engine.step()) == ["A", "B", "C", "d"]

    def test_the_policys_step_budget_bounds_offline_too(self) -> None:
        policy = Policy(offline_kv_blocks=99, offline_seq_slots=9, step_budget_s=0.02)
        engine = Packed(policy=policy)
        engine.add(request("A", online=True, prompt=8))
        engine.add(request("c", online=False, prompt=4))
        assert names(engine.step()) == ["A"]

    def test_without_a_lease_there_is_no_offline_work(self) -> None:
        engine = Packed(policy=Policy(offline_kv_blocks=0, offline_seq_slots=0))
        engine.add(request("c", online=False, prompt=4))
        assert not engine.step().work


class TestBlocks:
    """Blocks of four tokens; a prompt of eight takes two, its first decode a third."""

    def test_online_fills_offlines_blocks_from_the_front_and_preempts_nobody(self) -> None:
        """BROS §5.2: c loses slots, waits, and goes on in the same blocks when A has ended."""
        engine = Packed(blocks=3)
        engine.add(request("c", online=False, prompt=8, output=3))
        engine.step()
        engine.add(request("A", online=True, prompt=8, output=2))
        plan = engine.step()
        assert names(plan) == ["A"]
        assert plan.held == ("c",)
        assert not plan.preempt
        engine.run()
        assert set(engine.ended) == {"A", "c"}
        assert any("c" in plan.restore for plan in engine.plans)
        assert all(not plan.preempt for plan in engine.plans)

    def test_with_paged_blocks_offline_gives_way_by_recomputation(self) -> None:
        engine = Packed(blocks=3, paged=True)
        engine.add(request("c", online=False, prompt=8, output=3))
        engine.step()
        engine.add(request("A", online=True, prompt=8, output=2))
        assert [gone.request_id for gone in engine.step().preempt] == ["c"]
        engine.run()

    def test_a_swap_longer_than_the_step_is_not_packed_beside_an_urgent_request(self) -> None:
        """Coming back, c copies slots for longer than D has."""
        engine = Packed(blocks=3, swap_s=1.0)
        engine.add(request("c", online=False, prompt=8, output=3))
        engine.step()
        engine.add(request("A", online=True, prompt=8, output=1))
        engine.step()
        engine.add(request("D", online=True, prompt=4, output=2, at=engine.now_s))
        assert names(engine.step()) == ["D"]
        engine.run()
        assert any("c" in plan.restore for plan in engine.plans)

    def test_a_prompt_without_blocks_lets_running_requests_pass_and_keeps_offline_out(self) -> None:
        engine = Packed(blocks=4)
        engine.add(request("A", online=True, prompt=8, output=4))
        engine.step()
        engine.add(request("big", online=True, prompt=16, output=1, at=-0.99))
        engine.add(request("big too", online=True, prompt=16, output=1, at=-0.98))
        engine.add(request("c", online=False, prompt=4))
        assert names(engine.step()) == ["A"]

    def test_the_least_urgent_online_request_goes_when_no_offline_one_is_left(self) -> None:
        engine = Packed(blocks=4)
        engine.add(request("A", online=True, prompt=8, output=6, at=-0.5))
        engine.add(request("B", online=True, prompt=8, output=6))
        engine.step()
        plan = engine.step()
        assert names(plan) == ["A"]
        assert [(gone.request_id, gone.reason) for gone in plan.preempt] == [
            ("B", "more-urgent-needs-room")
        ]
        engine.run()
        assert set(engine.ended) == {"A", "B"}

    def test_a_slot_is_taken_from_offline(self) -> None:
        engine = Packed(max_seqs=1)
        engine.add(request("c", online=False, prompt=4, output=4))
        engine.step()
        engine.add(request("A", online=True, prompt=4))
        plan = engine.step()
        assert names(plan) == ["A"]
        assert [gone.request_id for gone in plan.preempt] == ["c"]
        engine.run()

    def test_cached_blocks_are_given_back_whole(self) -> None:
        """Under a hash no block is shared from both ends, so c is preempted."""
        engine = Packed(blocks=3, prefix_cache=True)
        engine.add(request("c", online=False, prompt=8, output=4))
        engine.step()
        engine.add(request("A", online=True, prompt=8, output=2))
        assert [gone.request_id for gone in engine.step().preempt] == ["c"]
        engine.run()

    def found_with_the_one_that_gives_way(self, engine: Packed, prompt: int) -> None:
        """c holds the prefix that A finds; c gives way for A, or for nothing."""
        engine.add(request("c", online=False, prompt=16, output=9, prefix="p", shared_blocks=2))
        engine.step()
        engine.add(request("A", online=True, prompt=prompt, output=2, prefix="p", shared_blocks=2))

    def test_a_request_that_outgrows_the_cache_alone_waits(self) -> None:
        engine = Packed(blocks=2)
        engine.add(request("A", online=True, prompt=8, output=4))
        engine.step()
        assert not engine.step().work

    def test_a_hit_on_blocks_of_the_one_that_gives_way_is_counted_anew(self) -> None:
        engine = Packed(blocks=6, prefix_cache=True)
        self.found_with_the_one_that_gives_way(engine, prompt=20)
        plan = engine.step()
        assert [gone.request_id for gone in plan.preempt] == ["c"]
        assert names(plan) == ["A"]
        engine.run()
        assert set(engine.ended) == {"A", "c"}

    def test_a_prompt_that_fits_no_more_without_its_hit_waits_a_step(self) -> None:
        """B takes a block, so A's hit on what c held is not sure: all 20 tokens are too many."""
        engine = Packed(blocks=9, max_batched_tokens=20, prefix_cache=True)
        engine.add(request("B", online=True, prompt=7, output=9))  # its third step takes a block
        engine.step()
        self.found_with_the_one_that_gives_way(engine, prompt=20)
        plan = engine.step()
        assert names(plan) == ["B"]
        assert [gone.request_id for gone in plan.preempt] == ["c"]
        engine.run()
        assert set(engine.ended) == {"A", "B", "c"}

    def test_offline_requests_that_block_each_other_give_way_by_arrival(self) -> None:
        engine = Packed(blocks=4)
        engine.add(request("c", online=False, prompt=8, output=6))
        engine.add(request("d", online=False, prompt=8, output=6, at=0.1))
        engine.step()
        plan = engine.step()
        assert not plan.work
        assert [gone.request_id for gone in plan.preempt] == ["d"]
        engine.run()
        assert set(engine.ended) == {"c", "d"}


class TestOffline:
    def test_the_threshold_and_the_slots_of_the_policy_hold(self) -> None:
        engine = Packed(policy=Policy(offline_kv_blocks=3, offline_seq_slots=5))
        for i in range(3):
            engine.add(request(f"c{i}", online=False, prompt=8, output=1))
        assert names(engine.step()) == ["c0"]
        engine = Packed(policy=Policy(offline_kv_blocks=99, offline_seq_slots=2))
        for i in range(3):
            engine.add(request(f"c{i}", online=False, prompt=8, output=1))
        assert names(engine.step()) == ["c0", "c1"]

    def test_a_prompt_goes_whole_or_waits(self) -> None:
        engine = Packed(max_batched_tokens=16)
        engine.add(request("c", online=False, prompt=10, output=1))
        engine.add(request("d", online=False, prompt=10, output=1, at=0.1))
        plan = engine.step()
        assert [(work.request_id, work.tokens) for work in plan.work] == [("c", 10)]

    def test_one_longer_than_a_step_is_cut(self) -> None:
        engine = Packed(max_batched_tokens=16)
        engine.add(request("long", online=False, prompt=40, output=1))
        engine.add(request("A", online=True, prompt=40, output=1, at=0.1))
        engine.run()
        assert set(engine.ended) == {"long", "A"}

    def test_a_solo_request_has_no_company(self) -> None:
        engine = Packed()
        engine.add(request("c", online=False, prompt=4, output=2))
        engine.add(request("alone", online=False, prompt=4, output=2, at=0.1, solo=True))
        engine.add(request("d", online=False, prompt=4, output=2, at=0.2))
        assert names(engine.step()) == ["c", "d"]
        engine.run()
        together = [set(names(plan)) for plan in engine.plans if "alone" in names(plan)]
        assert together == [{"alone"}] * len(together) != []

    def test_of_a_shared_prefix_one_leads(self) -> None:
        """Design §3, rule 6: the second finds what the first computed."""
        engine = Packed(prefix_cache=True)
        for i in range(2):
            engine.add(
                request(f"c{i}", online=False, prompt=12, output=1, prefix="p", shared_blocks=2)
            )
        assert names(engine.step()) == ["c0"]
        engine.run()
        assert sum(work.hit_tokens for plan in engine.plans for work in plan.work) == 8

    def test_online_leads_too(self) -> None:
        engine = Packed(prefix_cache=True)
        for online in (True, False):
            name = "A" if online else "c"
            engine.add(
                request(name, online=online, prompt=12, output=1, prefix="p", shared_blocks=2)
            )
        assert names(engine.step()) == ["A"]
        engine.run()
        assert sum(work.hit_tokens for plan in engine.plans for work in plan.work) == 8

    def test_an_online_request_that_loses_its_place_leads_nobody(self) -> None:
        """Both online ones begin with p; the offline ones wait for the one that stays."""
        engine = Packed(slos=slos(ttft_s=0.2), batch=FixedBatchSize(2), prefix_cache=True)
        for name, prefix, at in (("A", "p", -0.01), ("B", "p", 0.0)):
            engine.add(request(name, online=True, prompt=12, at=at, prefix=prefix, shared_blocks=2))
        engine.add(request("c", online=False, prompt=4))
        engine.add(request("d", online=False, prompt=12, prefix="p", shared_blocks=2))
        assert names(engine.step()) == ["A", "c"]
        engine.run()
        assert engine.scheduler.counters.offline_hit_tokens == 8


class TestBatchSize:
    def test_it_doubles_until_something_is_late_and_falls_back_to_the_base(self) -> None:
        """BROS §4.2."""
        batch = DoublingBatchSize(base=128, most=1000)
        seen = []
        for late in (False, False, False, False, True, False):
            batch.on_step(late=late)
            seen.append(batch.requests)
        assert seen == [256, 512, 1000, 1000, 128, 256]

    def test_a_plan_that_ran_out_of_time_resets_it(self) -> None:
        batch = DoublingBatchSize(base=1, most=8)
        engine = Packed(slos=slos(ttft_s=0.02), batch=batch)
        engine.add(request("c", online=False, prompt=4, output=9))
        engine.step()
        engine.step()
        assert batch.requests == 4
        engine.add(request("A", online=True, prompt=8, at=engine.now_s))
        engine.add(request("B", online=True, prompt=8, at=engine.now_s))
        engine.step()
        assert batch.requests == 1

    def test_bad_sizes_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="batch size is 0"):
            FixedBatchSize(0)
        with pytest.raises(ConfigError, match="give 1 to 64"):
            DoublingBatchSize(base=128, most=64)


class TestQueuePolling:
    def decoding(self, name: str, last_s: float) -> Request:
        made = request(name, online=True, prompt=8)
        made.output_tokens, made.computed_tokens = 1, 8
        made.first_token_s = made.last_token_s = last_s
        return made

    def test_two_ordered_queues_are_pulled_without_a_merge(self) -> None:
        """BROS Fig. 8: the waiting queue is read no further than the first that is not wanted."""
        remaining = RemainingTime(slos(ttft_s=0.4, tpot_s=0.2), step_tokens=64)
        read = []

        def waiting() -> Iterator[Request]:
            for i, at in enumerate((-0.3, -0.1, 0.0, 0.0, 0.0)):
                read.append(i)
                yield request(f"w{i}", online=True, at=at)

        pending = [self.decoding("p0", 0.0), self.decoding("p1", -0.05)]
        polled = remaining.poll(pending, waiting(), 0.0)
        got = [(str(found.id), round(left_s, 3)) for left_s, found in (next(polled), next(polled))]
        assert got == [("w0", 0.1), ("p1", 0.15)]
        assert read == [0, 1]
        assert [str(found.id) for _, found in polled] == ["p0", "w1", "w2", "w3", "w4"]

    def test_steps_to_the_next_token_count_at_the_average(self) -> None:
        """Algorithm 1, line 3: SLO - t - (k - 1) * T_avg with k = 3 steps for 40 tokens."""
        remaining = RemainingTime(slos(ttft_s=0.4), step_tokens=16)
        remaining.on_step(0.02)
        remaining.on_step(0.03)
        assert remaining.average_s == pytest.approx(0.021)
        left_s = remaining.of(request("A", online=True, prompt=40), 0.1)
        assert left_s == pytest.approx(0.4 - 0.1 - 2 * 0.021)

    def test_a_token_in_flight_counts_from_now(self) -> None:
        made = self.decoding("A", 0.0)
        made.last_token_s = None
        assert RemainingTime(slos(), step_tokens=64).of(made, 5.0) == pytest.approx(0.1)

    def test_both_objectives_are_needed(self) -> None:
        with pytest.raises(ConfigError, match="lack ttft or tpot"):
            RemainingTime(slos()[:1], step_tokens=64)


def test_an_online_prompt_does_not_ask_for_its_hit_twice() -> None:
    """Offline held less than that, so nobody gave way: both stood still for ever."""
    engine = MiniEngine(
        blocks=40, max_batched_tokens=256, max_seqs=5, preset="bros-paged", slos=slos()
    )
    engine.add(request("first", online=True, prompt=73, output=2, prefix="sys", shared_blocks=18))
    engine.run()
    off = engine.add(request("off", online=False, prompt=48, output=40, at=engine.now_s))
    while off.computed_tokens < 13 * BLOCK:  # its next token needs a block
        engine.step()
    engine.add(
        request(
            "second",
            online=True,
            prompt=111,
            output=2,
            at=engine.now_s,
            prefix="sys",
            shared_blocks=18,
        )
    )
    engine.run()
    assert engine.ended == {"first": 1, "off": 1, "second": 1}
