"""Who decodes on the GPU and who on the CPU lane, decided by the whole scheduler."""

from dataclasses import dataclass, field

import pytest

from tests.engine.sched.mini_engine import BLOCK, exact_model, request
from tests.engine.sched.scripted_lane import ScriptedLane
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.latency.models import ModulewiseModel
from weir_engine.presets import build_scheduler
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.scheduler import Scheduler

SLOS = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=5.0),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.1),
)


def private(name: str, *, online: bool, prompt: int, output: int) -> Request:
    """One that shares no block with any other."""
    made = request(name, online=online, prompt=prompt, output=output)
    made.block_hashes.clear()
    return made


@dataclass
class Bench:
    """The production scheduler over a scripted lane; plans are obeyed."""

    lane: ScriptedLane = field(default_factory=lambda: ScriptedLane(ready=[0, 0]))
    blocks: int = 64
    slots: int = 8
    now_s: float = 0.0
    preset: str = "omniserve"
    step_budget_s: float | None = None

    def __post_init__(self) -> None:
        self.kv = KvManager(total_blocks=self.blocks, block_size_tokens=BLOCK)
        self.scheduler: Scheduler = build_scheduler(
            self.preset,
            shape=EngineShape(
                block_size_tokens=BLOCK,
                total_blocks=self.blocks,
                max_batched_tokens=64,
                max_seqs=8,
                max_model_len_tokens=256,
            ),
            slos=SLOS,
            kv=self.kv,
            model=ModulewiseModel(),
            policy=Policy(
                offline_kv_blocks=self.blocks,
                offline_seq_slots=self.slots,
                step_budget_s=self.step_budget_s,
            ),
            lane=self.lane,
        )
        self.known: dict[RequestId, Request] = {}

    def add(self, new: Request) -> Request:
        self.scheduler.add(new)
        self.known[new.id] = new
        return new

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan(self.now_s)
        assert plan == self.scheduler.plan(self.now_s), "plan() must change nothing"
        return plan

    def step(self) -> StepPlan:
        plan = self.plan()
        for gone in plan.preempt:
            self.kv.free(gone.request_id)
        for request_id in plan.recall:
            self.kv.allocate(self.known[request_id], new_tokens=self.known[request_id].known_tokens)
        for work in plan.work:
            self.kv.allocate(self.known[work.request_id], new_tokens=work.tokens)
        self.scheduler.begin(plan)
        self.now_s += 0.05
        ended_s = self.now_s
        self.scheduler.commit(plan, StepOutcome(started_s=ended_s - 0.05, ended_s=ended_s))
        return plan

    def decoding(self, name: str, *, prompt: int = 8, output: int = 20) -> Request:
        """An offline request that has its first token."""
        new = self.add(private(name, online=False, prompt=prompt, output=output))
        while not new.is_decoding:
            self.step()
        return new


def moves(plan: StepPlan) -> dict[str, bool]:
    return {gone.request_id: gone.to_cpu for gone in plan.preempt}


def words(plan: StepPlan) -> dict[str, str]:
    return {work.request_id: work.reason for work in plan.work}


def test_offline_prompts_go_before_offline_decodes_and_decodes_left_out_go_to_the_cpu() -> None:
    bench = Bench(blocks=200)
    bench.decoding("a")
    # A prompt that fills the step leaves no room for the decode.
    bench.add(request("long", online=False, prompt=200)).block_hashes.clear()
    plan = bench.step()
    assert words(plan) == {"long": "offline-admit"}
    assert moves(plan) == {"a": True}
    assert list(bench.scheduler.state.on_cpu) == ["a"]
    assert "a" not in bench.scheduler.state.running


def test_preset_weir_leaves_decodes_to_the_lane_where_a_prompt_needs_the_time() -> None:
    bench = Bench(blocks=200, preset="weir", step_budget_s=0.03)
    bench.add(private("on", online=True, prompt=4, output=50))
    bench.decoding("a")
    bench.add(private("long", online=False, prompt=200, output=4))
    plan = bench.step()
    assert words(plan) == {"on": "online-decode", "long": "offline-admit"}
    assert moves(plan) == {"a": True}


def test_beside_a_lane_preset_weir_leaves_online_some_blocks_to_grow_into() -> None:
    # Four online requests hold a block each: one standard deviation is two blocks.
    def admitted(preset: str, blocks: int) -> bool:
        bench = Bench(blocks=blocks, preset=preset)
        for i in range(4):
            bench.add(private(f"on-{i}", online=True, prompt=2, output=50))
        bench.step()
        bench.add(private("off", online=False, prompt=12, output=4))
        return words(bench.plan()).get("off") == "offline-admit"

    assert admitted("omniserve", 7)
    assert not admitted("weir", 8)
    assert admitted("weir", 9)


def test_a_decode_stays_where_host_memory_is_full() -> None:
    bench = Bench(blocks=200)
    bench.lane.room_tokens = 4
    bench.decoding("a")
    bench.add(request("long", online=False, prompt=200)).block_hashes.clear()
    plan = bench.step()
    assert moves(plan) == {}
    assert plan.held == ("a",)


def test_what_online_work_displaces_moves_instead_of_being_computed_again() -> None:
    bench = Bench(blocks=8)
    bench.decoding("a", prompt=12)
    bench.add(request("on", online=True, prompt=24, output=2)).block_hashes.clear()
    plan = bench.step()
    assert "on" in words(plan)
    assert moves(plan) == {"a": True}
    again = Bench(blocks=8, lane=ScriptedLane(ready=[0, 0], room_tokens=5))
    again.decoding("a", prompt=12)
    again.add(request("on", online=True, prompt=24, output=2)).block_hashes.clear()
    assert moves(again.step()) == {"a": False}
    assert list(again.scheduler.state.resuming) == ["a"]


def test_an_online_request_is_never_moved() -> None:
    bench = Bench(blocks=4)
    for name, at in (("first", 0.0), ("second", 0.001)):
        new = request(name, online=True, prompt=7, output=9, at=at)
        new.block_hashes.clear()
        bench.add(new)
    plans = [bench.step() for _ in range(6)]
    assert [moves(plan) for plan in plans if plan.preempt][:1] == [{"second": False}]


def on_cpu(bench: Bench, name: str = "a") -> Request:
    """A request that has gone to the lane and finished a token there."""
    moved = bench.decoding(name)
    bench.kv.free(moved.id)
    bench.scheduler.state.leave_for_cpu(moved)
    bench.lane.between_tokens.append(moved.id)
    return moved


def test_one_comes_back_when_the_step_has_room_and_decodes_once_it_has_landed() -> None:
    bench = Bench()
    moved = on_cpu(bench)
    plan = bench.step()
    assert plan.recall == (moved.id,)
    assert plan.work == ()
    bench.lane.between_tokens.clear()
    bench.lane.landing.add(moved.id)
    landing = bench.step()
    assert (landing.work, landing.held, landing.recall) == ((), (), ())
    bench.lane.landing.clear()
    assert words(bench.step()) == {"a": "offline-decode"}


@pytest.mark.parametrize("lacks", ["slots", "blocks", "time"])
def test_it_stays_on_the_cpu_while_anything_lacks(lacks: str) -> None:
    bench = Bench(blocks=16, slots=1 if lacks == "slots" else 8)
    moved = on_cpu(bench)
    if lacks == "slots":
        bench.decoding("b")
    if lacks == "blocks":
        bench.add(request("on", online=True, prompt=56, output=2)).block_hashes.clear()
        bench.step()
    if lacks == "time":
        moved.computed_tokens = moved.prompt_tokens = 100_000
    assert bench.plan().recall == ()


def test_a_waiting_prompt_would_take_the_room_first() -> None:
    bench = Bench(blocks=200)
    on_cpu(bench)
    bench.add(request("long", online=False, prompt=20)).block_hashes.clear()
    assert bench.plan().recall == ()


def test_results_ride_along_and_a_step_may_hold_nothing_else() -> None:
    bench = Bench()
    moved = on_cpu(bench)
    bench.lane.between_tokens.clear()
    bench.lane.ready = [0, 1]
    plan = bench.step()
    assert (plan.work, plan.piggyback) == ((), (0, 1))
    assert plan.predicted_s > plan.piggyback_s > 0
    assert bench.scheduler.counters.offline_steps >= 1
    bench.lane.ready = [0, 0]
    before = moved.known_tokens
    outcome = StepOutcome(started_s=1.0, ended_s=1.1, tokens={moved.id: 1})
    bench.scheduler.commit(plan, outcome)
    assert moved.known_tokens == before + 1
    assert moved.is_decoding


def test_an_idle_scheduler_asks_again_when_the_lane_has_something() -> None:
    bench = Bench()
    on_cpu(bench)
    bench.lane.between_tokens.clear()
    bench.lane.next_s = bench.now_s + 0.25
    assert bench.plan().idle_s == pytest.approx(0.25)


def test_a_request_that_ends_on_the_cpu_is_known_no_more() -> None:
    bench = Bench()
    moved = on_cpu(bench)
    bench.scheduler.abort(moved.id)
    assert not bench.scheduler.state.on_cpu
    assert not bench.scheduler.state.requests


def test_a_late_first_token_stops_offline_work_but_moves_nobody() -> None:
    bench = Bench(blocks=200)
    bench.decoding("a")
    late = request("on", online=True, prompt=190, output=2, at=bench.now_s - 10.0)
    late.block_hashes.clear()
    bench.add(late)
    plan = bench.step()
    assert list(words(plan)) == ["on"]
    assert moves(plan) == {}
    assert plan.held == ("a",)


def test_a_lane_needs_a_model_that_knows_its_dense_modules() -> None:
    kv = KvManager(total_blocks=8, block_size_tokens=BLOCK)
    shape = EngineShape(
        block_size_tokens=BLOCK,
        total_blocks=8,
        max_batched_tokens=64,
        max_seqs=8,
        max_model_len_tokens=256,
    )
    with pytest.raises(ConfigError, match="modulewise"):
        build_scheduler(
            "omniserve",
            shape=shape,
            slos=SLOS,
            kv=kv,
            model=exact_model(),
            lane=ScriptedLane(ready=[0]),
        )
