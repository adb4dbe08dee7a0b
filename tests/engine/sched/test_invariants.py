"""The invariants of design §3 for the whole scheduler, under any interleaving of events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engine.sched.mini_engine import BLOCK, MiniEngine, request
from weir_engine.config import Metric, Policy, Slo
from weir_engine.kv.bidirectional import BidirectionalKvManager
from weir_engine.kv.manager import KvManager
from weir_engine.presets import PRESETS
from weir_engine.sched import gathering
from weir_engine.sched.step_kind import StepKind

TBT_S = 0.030
SLO = Slo(metric=Metric.TBT, statistic="p99", threshold_s=TBT_S)
# Echo's budget needs both; nothing in these tests comes near to them.
CUMULATIVE = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.05),
)
# Presets that promise to hold a TBT objective; the others are held to their own limit.
HOLD_TBT = ("weir", "hygen")


class Colocation(RuleBasedStateMachine):
    preset = "weir"
    manager: type[KvManager] | None = None
    prefix_cache = True
    mixed_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.engine = MiniEngine(
            slos=(SLO,) if self.preset in HOLD_TBT else CUMULATIVE,
            blocks=24,
            max_seqs=6,
            preset=self.preset,
            manager=self.manager,
            prefix_cache=self.prefix_cache,
            static_budget_s=TBT_S,
            mixed_s=self.mixed_s,
        )
        self.count = 0
        self.produced: dict[str, int] = {}
        self.known: set[str] = set()

    @rule(
        online=st.booleans(),
        prompt=st.integers(1, 40),
        output=st.integers(1, 12),
        prefix=st.sampled_from([None, "a", "b"]),
    )
    def arrive(self, online: bool, prompt: int, output: int, prefix: str | None) -> None:
        self.count += 1
        name = f"r{self.count}"
        self.known.add(name)
        shared = prompt // BLOCK // 2
        self.engine.add(
            request(
                name,
                online=online,
                prompt=prompt,
                output=output,
                at=self.engine.now_s,
                prefix=prefix,
                shared_blocks=shared,
            )
        )

    @rule(blocks=st.integers(0, 24), slots=st.integers(0, 6))
    def policy(self, blocks: int, slots: int) -> None:
        self.engine.scheduler.set_policy(Policy(offline_kv_blocks=blocks, offline_seq_slots=slots))

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.sampled_from(sorted(self.engine.live))))

    @rule(steps=st.integers(1, 6))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            policy = self.engine.scheduler.policy
            before = self.engine.kv.offline_only_blocks
            waited = self.engine.scheduler.state.decodes_wait
            plan = self.engine.step()
            assert not (waited and plan.kind is StepKind.PREFILL), "decodes wait for one step"
            online = [r for r in self.engine.live.values() if r.is_online and r.output_tokens > 1]
            if plan.shape != plan.online_shape and plan.online_shape.decode_requests:
                # Invariant 3: offline work never makes an online decode miss its deadline.
                assert plan.limit_s is not None
                assert plan.predicted_s <= plan.limit_s + 1e-9
                if self.preset in HOLD_TBT:
                    assert self.engine.cost_s(plan) <= TBT_S + 1e-9 or not online
            after = self.engine.kv.offline_only_blocks
            assert after <= max(policy.offline_kv_blocks, before)

    @invariant()
    def blocks_add_up(self) -> None:
        """Invariants 1 and 2: no block twice, held + free = total."""
        self.engine.kv.check()

    @invariant()
    def ends_once(self) -> None:
        """Invariant 2: every request ends exactly once."""
        assert all(count == 1 for count in self.engine.ended.values())
        assert self.engine.ended.keys() | self.engine.live.keys() == self.known
        assert not self.engine.ended.keys() & self.engine.live.keys()

    @invariant()
    def tokens_stay(self) -> None:
        """Invariant 4: what a request produced is never lost."""
        for name, live in self.engine.live.items():
            assert live.output_tokens >= self.produced.get(name, 0)
            self.produced[name] = live.output_tokens

    @invariant()
    def slots(self) -> None:
        assert len(self.engine.scheduler.state.running) <= self.engine.max_seqs

    def teardown(self) -> None:
        """With an open policy everything ends."""
        self.engine.scheduler.set_policy(Policy(offline_kv_blocks=10_000, offline_seq_slots=10_000))
        self.engine.run(2_000)
        self.engine.kv.check()
        assert self.engine.kv.free_blocks == self.engine.blocks
        assert not self.engine.scheduler.state.running
        assert not self.engine.scheduler.state.requests


@pytest.mark.parametrize("preset", PRESETS)
def test_invariants_hold_under_any_interleaving(preset: str) -> None:
    machine = type(f"Colocation_{preset}", (Colocation,), {"preset": preset})
    examples = settings(max_examples=40, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(machine, settings=examples)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("preset", ["weir", "hygen", "sarathi"])
def test_invariants_hold_on_blocks_filled_from_both_ends(preset: str, prefix_cache: bool) -> None:
    own = {
        "preset": preset,
        "manager": BidirectionalKvManager,
        "prefix_cache": prefix_cache,
    }
    machine = type(f"BothEnds_{preset}", (Colocation,), own)
    examples = settings(max_examples=40, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(machine, settings=examples)


@pytest.mark.parametrize("mixed_s", [0.0002, 0.001])
def test_invariants_hold_where_steps_are_split(mixed_s: float) -> None:
    """Beside a prompt a decode takes up to 50 times as long, and a step costs 10 of its own."""
    machine = type("Split", (Colocation,), {"mixed_s": mixed_s})
    examples = settings(max_examples=80, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(machine, settings=examples)


def test_invariants_hold_where_prompts_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots and tiles so that six requests are enough for it."""
    for name, value in {"_GATHERED_SLOTS": 2, "_TILE_TOKENS": 4, "_LEAST_STEPS": 1.0}.items():
        monkeypatch.setattr(gathering, name, value)
    test_invariants_hold_under_any_interleaving("weir")


def _trace(seed: int, preset: str) -> list[object]:
    engine = MiniEngine(
        slos=(SLO, *CUMULATIVE), blocks=32, max_seqs=5, preset=preset, static_budget_s=TBT_S
    )
    for i in range(12):
        engine.add(
            request(
                f"n{i}",
                online=(i * seed) % 3 == 0,
                prompt=5 + (i * 7 * seed) % 23,
                output=1 + i % 5,
                prefix="ab"[i % 2],
                shared_blocks=1,
            )
        )
        engine.step()
    engine.run()
    return [(plan.work, plan.preempt, plan.held) for plan in engine.plans]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_same_trace_same_plans(seed: int, preset: str) -> None:
    """Invariant 5: with the same trace the sequence of plans is identical."""
    assert _trace(seed, preset) == _trace(seed, preset)


def test_one_of_a_shared_prefix_leads_and_the_others_reuse_it() -> None:
    """Invariant 6: siblings of an uncomputed prefix wait for the one that computes it."""
    engine = MiniEngine(max_batched_tokens=12)
    for i in range(4):
        engine.add(request(f"s{i}", online=False, prompt=24, prefix="doc", shared_blocks=5))
    first = engine.step()
    assert [work.request_id for work in first.work] == ["s0"]
    engine.run()
    counters = engine.scheduler.counters
    assert counters.offline_hit_tokens == 3 * 5 * BLOCK
    # Served counts every token of every request once; computed leaves the shared prefix out.
    assert counters.offline_served_tokens == 4 * (24 + 4 - 1)
    assert counters.offline_computed_tokens == counters.offline_served_tokens - 3 * 5 * BLOCK


def test_hits_exclude_recomputation_after_preemption() -> None:
    """Invariant 6: a resumed request finds its own blocks, which is no prefix hit."""
    engine = MiniEngine(blocks=8, max_seqs=4)
    victim = engine.add(request("off", online=False, prompt=16, output=12))
    for _ in range(3):
        engine.step()
    produced = victim.output_tokens
    engine.add(request("on", online=True, prompt=20, output=2, at=engine.now_s))
    engine.step()
    assert victim.preemptions == 1
    assert victim.output_tokens == produced
    engine.run()
    assert engine.scheduler.counters.offline_hit_tokens == 0
    assert engine.scheduler.counters.offline_served_tokens == 16 + 12 - 1


@pytest.mark.parametrize("preset", ["weir", "omniserve"])
def test_what_is_found_with_one_that_gives_way_may_be_evicted_first(preset: str) -> None:
    """Invariant 6: ``first`` takes blocks before ``second``, whose prefix ``off`` held alone."""
    slos = (SLO,) if preset == "weir" else CUMULATIVE
    engine = MiniEngine(blocks=11, preset=preset, slos=slos)
    one = Policy(offline_kv_blocks=99, offline_seq_slots=1)
    engine.scheduler.set_policy(one)
    engine.add(request("doc", online=False, prompt=24, output=1, prefix="d", shared_blocks=6))
    engine.run()
    engine.add(request("off", online=False, prompt=24, output=9, prefix="p", shared_blocks=2))
    engine.step()
    for i in range(3):  # they want the document more than anybody wants what ``off`` leaves
        name = f"wait{i}"
        engine.add(request(name, online=False, prompt=40, output=1, prefix="d", shared_blocks=6))
    engine.add(request("first", online=True, prompt=20, output=2))
    engine.add(request("second", online=True, prompt=12, output=2, prefix="p", shared_blocks=2))
    plan = engine.step()
    assert [gone.request_id for gone in plan.preempt] == ["off"]
    assert [(work.request_id, work.hit_tokens) for work in plan.work] == [
        ("first", 0),
        ("second", 0),
    ]
    engine.run()


@pytest.mark.parametrize("preset", ["weir", "omniserve"])
def test_what_is_found_with_one_that_gives_way_for_a_later_one_is_kept(preset: str) -> None:
    """Invariant 6: ``second`` counts on blocks of ``off``, which gives way for ``third``.

    Before either has them ``first`` takes all that nobody else wants more.
    """
    slos = (SLO,) if preset == "weir" else CUMULATIVE
    engine = MiniEngine(blocks=14, preset=preset, slos=slos)
    engine.scheduler.set_policy(Policy(offline_kv_blocks=99, offline_seq_slots=1))
    engine.add(request("doc", online=False, prompt=40, output=1, prefix="d", shared_blocks=10))
    engine.run()
    engine.add(request("off", online=False, prompt=12, output=9, prefix="p", shared_blocks=2))
    engine.step()
    for i in range(3):
        name = f"wait{i}"
        engine.add(request(name, online=False, prompt=52, output=1, prefix="d", shared_blocks=10))
    engine.add(request("first", online=True, prompt=20, output=2))
    engine.add(request("second", online=True, prompt=12, output=2, prefix="p", shared_blocks=2))
    engine.add(request("third", online=True, prompt=24, output=2))
    plan = engine.step()
    assert [gone.request_id for gone in plan.preempt] == ["off"]
    assert [(work.request_id, work.hit_tokens) for work in plan.work][:2] == [
        ("first", 0),
        ("second", 8),
    ]
    engine.run()
