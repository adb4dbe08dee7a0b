"""What a step holds: online first, offline in what is left, who gives way, who waits."""

import pytest

from tests.engine.sched.mini_engine import BLOCK, STEP_S, TOKEN_S, MiniEngine, request
from weir_engine.config import Metric, Policy, Slo
from weir_engine.errors import DuplicateRequestError, StateError
from weir_engine.kv.view import PrefixHit
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.request import RequestState
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.plan import StepPlan

TBT_20MS = Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.020)
TBT_25MS = Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.025)


def tokens_of(plan: StepPlan) -> dict[str, int]:
    return {work.request_id: work.tokens for work in plan.work}


def decoding_online(engine: MiniEngine, name: str = "on", output: int = 50) -> None:
    engine.add(request(name, online=True, prompt=4, output=output, at=engine.now_s))
    engine.step()


def test_a_step_is_packed_up_to_the_slack_of_the_online_decoder() -> None:
    engine = MiniEngine(slos=(TBT_20MS,))
    decoding_online(engine)
    engine.add(request("off", online=False, prompt=100))
    plan = engine.step()
    assert tokens_of(plan)["on"] == 1
    # 20 ms less the fixed 10 and the decode's 1 leave 9 tokens of 1 ms.
    assert tokens_of(plan)["off"] in (8, 9)
    assert plan.limit_reason == "tbt-tail"
    assert STEP_S + TOKEN_S * plan.shape.tokens <= 0.020 + 1e-9


def test_without_online_work_steps_run_to_the_longest() -> None:
    engine = MiniEngine(slos=(TBT_20MS,), max_batched_tokens=500, blocks=200)
    engine.add(request("off", online=False, prompt=400))
    assert tokens_of(engine.step())["off"] in (189, 190)  # twenty fixed costs in all


def test_online_prefill_is_chunked_to_the_decoders_pace() -> None:
    engine = MiniEngine(slos=(TBT_20MS,))
    decoding_online(engine)
    engine.add(request("long", online=True, prompt=60, at=engine.now_s))
    plan = engine.step()
    assert tokens_of(plan)["on"] == 1
    assert 0 < tokens_of(plan)["long"] <= 9


@pytest.mark.parametrize(("prompt", "whole"), [(60, True), (30, False)])
def test_a_prompt_that_chunks_would_make_late_runs_whole(prompt: int, whole: bool) -> None:
    """In chunks of 14 tokens 60 take 125 ms, 30 only 75: the tail of TTFT allows 100."""
    ttft = Slo(metric=Metric.TTFT, statistic="p99", threshold_s=0.1)
    engine = MiniEngine(slos=(TBT_25MS, ttft), max_batched_tokens=200)
    decoding_online(engine)
    for number in range(3):  # whole ones spend the credit that is there at first
        engine.add(request(f"early{number}", online=True, prompt=40, output=1, at=engine.now_s))
        for _ in range(6):
            engine.step()
    engine.add(request("late", online=True, prompt=prompt, at=engine.now_s))
    assert (tokens_of(engine.step())["late"] == prompt) is whole


def test_a_prompt_behind_a_delayed_one_is_delayed_as_long() -> None:
    """Who comes after the step with offline work ended has waited for it all the same."""
    engine = MiniEngine(
        max_batched_tokens=200,
        slos=(Slo(metric=Metric.TTFT, statistic="mean", threshold_s=1.0),),
    )
    engine.add(request("off", online=False, prompt=100))
    engine.step()
    offline_s = engine.now_s
    first = engine.add(request("a", online=True, prompt=60, at=offline_s / 4))
    assert first.offline_delay_s == pytest.approx(0.75 * offline_s)
    second = engine.add(request("b", online=True, prompt=60, at=offline_s + 0.001))
    assert second.offline_delay_s == pytest.approx(0.75 * offline_s)
    engine.step()
    engine.step()
    third = engine.add(request("c", online=True, prompt=60, at=engine.now_s))
    assert third.offline_delay_s == 0.0


def test_behind_a_preempted_prompt_a_delay_is_that_of_those_before_it() -> None:
    """It came back behind others, and its own delay says nothing of theirs."""
    engine = MiniEngine(slos=(Slo(metric=Metric.TTFT, statistic="mean", threshold_s=1.0),))
    delayed = engine.add(request("a", online=True))
    preempted = engine.add(request("b", online=True))
    delayed.offline_delay_s, preempted.preemptions = 0.5, 1
    assert engine.add(request("c", online=True)).offline_delay_s == 0.5


def test_offline_gives_blocks_back_when_online_needs_them() -> None:
    engine = MiniEngine(blocks=10)
    engine.add(request("off", online=False, prompt=28, output=8))
    engine.step()
    engine.add(request("on", online=True, prompt=32, at=engine.now_s))
    plan = engine.step()
    assert [gone.request_id for gone in plan.preempt] == ["off"]
    assert plan.preempt[0].reason == "online-needs-room"
    assert tokens_of(plan) == {"on": 32}
    engine.run()
    assert engine.ended == {"off": 1, "on": 1}


@pytest.mark.parametrize(
    "slos",
    [
        (Slo(metric=Metric.TTFT, statistic="p99", threshold_s=1.0),),
        (Slo(metric=Metric.TTFT, statistic="mean", threshold_s=1.0),),
        (Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.1),),
    ],
    ids=["p99-ttft", "mean-ttft", "p99-tbt"],
)
def test_blocks_that_offline_requests_share_come_free_together(slos: tuple[Slo, ...]) -> None:
    """Each holds one block of its own: none of them alone could make room for online."""
    engine = MiniEngine(
        slos=slos, blocks=64, policy=Policy(offline_kv_blocks=57, offline_seq_slots=16)
    )
    for number in range(40):
        engine.add(
            request(f"off{number}", online=False, prompt=41 * BLOCK, prefix="doc", shared_blocks=40)
        )
    for _ in range(8):
        engine.step()
    others = [engine.add(request("other", online=False, prompt=2 * BLOCK, at=engine.now_s))]
    online = engine.add(request("on", online=True, prompt=40 * BLOCK, at=engine.now_s))
    for _ in range(20):
        engine.step()
        engine.kv.check()
    assert online.state is not RequestState.WAITING
    engine.run()
    assert {"on", "other", *(f"off{number}" for number in range(40))} == set(engine.ended)
    assert others[0].state is RequestState.FINISHED


def test_the_family_that_loses_least_gives_way() -> None:
    engine = MiniEngine(blocks=64, policy=Policy(offline_kv_blocks=64, offline_seq_slots=16))
    for document, blocks in (("long", 24), ("short", 12)):
        for number in range(3):
            name = f"{document}{number}"
            engine.add(
                request(
                    name,
                    online=False,
                    prompt=(blocks + 1) * BLOCK,
                    output=12,
                    prefix=document,
                    shared_blocks=blocks,
                )
            )
    while len(engine.scheduler.state.running_offline) < 6:
        engine.step()
    needed = engine.kv.free_blocks + 13  # more than all of them have of their own
    engine.add(request("on", online=True, prompt=needed * BLOCK, at=engine.now_s))
    plan = engine.step()
    assert {str(gone.request_id)[:-1] for gone in plan.preempt} == {"short"}
    assert "on" in tokens_of(plan)


def test_offline_gives_its_slot_when_all_are_taken() -> None:
    """Memory alone is not enough: sequence slots block an online arrival too."""
    engine = MiniEngine(max_seqs=2)
    engine.add(request("off1", online=False, prompt=8, output=30))
    engine.add(request("off2", online=False, prompt=8, output=30, at=0.001))
    engine.step()
    engine.add(request("on", online=True, at=engine.now_s))
    plan = engine.step()
    assert len(plan.preempt) == 1
    assert "on" in tokens_of(plan)


def test_the_threshold_bounds_offline_blocks_and_slots_bound_requests() -> None:
    engine = MiniEngine(policy=Policy(offline_kv_blocks=6, offline_seq_slots=1))
    for i in range(3):
        engine.add(request(f"o{i}", online=False, prompt=8, output=4, at=i / 1000))
    plan = engine.step()
    assert list(tokens_of(plan)) == ["o0"]
    engine.run()
    assert len(engine.ended) == 3


def test_a_lowered_threshold_stops_growth_and_does_not_preempt_at_once() -> None:
    engine = MiniEngine()
    engine.add(request("off", online=False, prompt=15, output=20))
    engine.step()
    engine.scheduler.set_policy(Policy(offline_kv_blocks=4, offline_seq_slots=4))
    held = [engine.step() for _ in range(4)]
    assert not any(plan.preempt for plan in held)
    assert engine.kv.offline_only_blocks <= 4


def test_what_can_never_fit_the_threshold_keeps_nobody_waiting() -> None:
    engine = MiniEngine(blocks=64, policy=Policy(offline_kv_blocks=30, offline_seq_slots=8))
    large = engine.add(request("large", online=False, prompt=32 * BLOCK))
    for number in range(20):
        engine.add(request(f"small{number}", online=False, prompt=8, at=0.001))
    engine.run(left=1)
    assert large.state is RequestState.WAITING
    engine.scheduler.set_policy(Policy(offline_kv_blocks=60, offline_seq_slots=8))
    engine.run()
    assert "large" in engine.ended


@pytest.mark.parametrize("others", [(), ("another",)])
def test_many_that_are_longer_than_the_threshold_hide_no_shorter_one(
    others: tuple[str, ...],
) -> None:
    """More than a step looks at: their tenant's other requests lie behind them."""
    engine = MiniEngine(
        blocks=64,
        policy=Policy(offline_kv_blocks=30, offline_seq_slots=8),
        pool=OfflinePool(),
    )
    for number in range(200):
        engine.add(request(f"large{number}", online=False, prompt=32 * BLOCK))
    for number in range(4):
        engine.add(request(f"small{number}", online=False, prompt=8, at=0.001))
    for name in others:
        for number in range(100):
            large = request(f"{name}{number}", online=False, prompt=32 * BLOCK)
            large.tenant = name
            engine.add(large)
    engine.run(left=200 + 100 * len(others))
    assert set(engine.ended) == {f"small{number}" for number in range(4)}


def test_a_few_that_are_longer_than_the_threshold_hide_nobody() -> None:
    """Those that a step looks at are enough, for most of them fit."""
    engine = MiniEngine(policy=Policy(offline_kv_blocks=30, offline_seq_slots=8))
    engine.add(request("large", online=False, prompt=32 * BLOCK))
    for number in range(100):
        engine.add(request(f"small{number}", online=False, prompt=8, at=0.001))
    assert len(tokens_of(engine.step())) == 8


def test_beside_decoders_that_fill_the_limit_a_prompt_moves_a_block_at_a_time() -> None:
    tpot_5ms = Slo(metric=Metric.TPOT, statistic="p99", threshold_s=0.005)  # a step takes 10
    ttft = Slo(metric=Metric.TTFT, statistic="p99", threshold_s=0.010)
    engine = MiniEngine(slos=(ttft, tpot_5ms), preset="echo")
    decoding_online(engine)
    for name in ("first", "next"):
        prompt = request(name, online=True, prompt=2 * BLOCK, output=1, at=engine.now_s)
        engine.add(prompt)
    plans = [tokens_of(engine.step()) for _ in range(4)]
    assert plans == [{"on": 1, name: BLOCK} for name in ("first", "first", "next", "next")]


def test_a_begun_prompt_that_is_late_anyway_lets_one_pass_that_is_not() -> None:
    """Decision 26: the fewest are late."""
    ttft = Slo(metric=Metric.TTFT, statistic="p50", threshold_s=0.080)
    engine = MiniEngine(slos=(ttft,), blocks=200)
    engine.add(request("long", online=True, prompt=150))
    engine.step()
    engine.add(request("short", online=True, prompt=64, output=1, at=engine.now_s))
    plans = [tokens_of(engine.step()) for _ in range(3)]
    assert plans == [{"short": 64}, {"long": 64}, {"long": 22}]


def test_a_request_that_may_become_too_long_runs_when_it_is_alone() -> None:
    """Its bound is the model's context, its answer is short."""
    engine = MiniEngine(blocks=64, policy=Policy(offline_kv_blocks=30, offline_seq_slots=8))
    engine.add(request("open", online=False, prompt=8, output=1_000))
    for _ in range(3):
        engine.step()
    assert engine.scheduler.state.running_offline


def test_a_prompt_that_outgrows_a_lowered_threshold_lets_others_go_on() -> None:
    """Its next piece takes more than one block: it stops short of the threshold."""
    engine = MiniEngine(blocks=64, max_batched_tokens=12)
    engine.add(request("long", online=False, prompt=60, output=2))
    for _ in range(3):
        engine.step()  # nine blocks
    engine.scheduler.set_policy(Policy(offline_kv_blocks=10, offline_seq_slots=8))
    for number in range(3):
        engine.add(request(f"short{number}", online=False, prompt=8, output=2, at=1.0))
    engine.run(40, left=1)
    assert set(engine.live) == {"long"}
    engine.scheduler.set_policy(Policy(offline_kv_blocks=32, offline_seq_slots=8))
    engine.run(40)


def test_one_that_outgrows_a_lowered_threshold_lets_others_go_on() -> None:
    engine = MiniEngine(blocks=64, policy=Policy(offline_kv_blocks=57, offline_seq_slots=8))
    engine.add(request("large", online=False, prompt=30 * BLOCK, output=40))
    for _ in range(5):
        engine.step()
    engine.scheduler.set_policy(Policy(offline_kv_blocks=30, offline_seq_slots=8))
    for number in range(20):
        engine.add(request(f"small{number}", online=False, prompt=8, at=engine.now_s))
    engine.run(left=1)
    engine.scheduler.set_policy(Policy(offline_kv_blocks=57, offline_seq_slots=8))
    engine.run()
    assert "large" in engine.ended


def test_an_expired_policy_serves_online_only() -> None:
    engine = MiniEngine(
        policy=Policy(offline_kv_blocks=50, offline_seq_slots=5, expires_s=STEP_S * 1.5)
    )
    engine.add(request("off", online=False, prompt=4, output=30))
    assert "off" in tokens_of(engine.step())
    engine.now_s = 1.0
    decoding_online(engine)
    plan = engine.step()
    assert tokens_of(plan) == {"on": 1}
    assert plan.held == ("off",)


def test_a_policy_budget_bounds_the_step() -> None:
    engine = MiniEngine(
        policy=Policy(offline_kv_blocks=50, offline_seq_slots=5, step_budget_s=0.025)
    )
    engine.add(request("off", online=False, prompt=60))
    plan = engine.step()
    assert plan.limit_reason == "policy"
    assert STEP_S + TOKEN_S * plan.shape.tokens <= 0.025 + 1e-9


def test_where_no_decode_fits_a_step_does_one_all_the_same() -> None:
    engine = MiniEngine(
        policy=Policy(offline_kv_blocks=50, offline_seq_slots=5, step_budget_s=STEP_S / 2)
    )
    for name in ("first", "second"):
        engine.add(request(name, online=False, prompt=4, output=6))
    while engine.live:
        assert len(engine.step().work) == 1
    assert engine.ended == {"first": 1, "second": 1}


def test_a_held_decode_is_held_for_several_steps() -> None:
    tight = Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.0135)
    engine = MiniEngine(slos=(tight,), blocks=200)
    for i in range(6):
        engine.add(request(f"o{i}", online=False, prompt=4, output=60, at=i / 1000))
    for _ in range(3):
        engine.step()
    decoding_online(engine)
    plans = [engine.step() for _ in range(6)]
    kept = [frozenset(w.request_id for w in plan.work) - {"on"} for plan in plans]
    assert kept[0]
    assert len(set(kept)) == 1, "who is left out must not alternate"
    assert len(plans[0].held) == 6 - len(kept[0])


@pytest.mark.parametrize(
    ("decode_tokens", "room_tokens", "decodes"),
    [(2, 500, True), (20, 500, False), (20, 40, True)],
    ids=["a cheap decode", "a dear decode", "the engine's tokens end the step"],
)
def test_prompts_go_before_decodes_that_cost_many_of_their_tokens(
    decode_tokens: int, room_tokens: int, *, decodes: bool
) -> None:
    slo = Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.1)
    engine = MiniEngine(
        slos=(slo,), blocks=200, max_batched_tokens=room_tokens, decode_s=decode_tokens * TOKEN_S
    )
    engine.add(request("begun", online=False, prompt=4, output=60))
    engine.step()
    decoding_online(engine)
    engine.add(request("prompt", online=False, prompt=200, at=engine.now_s))
    given = tokens_of(engine.step())
    assert given["on"] == 1
    assert ("begun" in given) is decodes
    assert given["prompt"] > 30


def test_a_solo_request_has_no_offline_company() -> None:
    """Rule 5 of design §8: suspects run one at a time."""
    engine = MiniEngine()
    engine.add(request("s1", online=False, prompt=8, output=4, solo=True))
    engine.add(request("s2", online=False, prompt=8, output=4, at=0.001, solo=True))
    engine.add(request("o", online=False, prompt=8, output=4, at=0.002))
    while engine.live:
        plan = engine.step()
        offline = set(tokens_of(plan))
        assert len(offline) <= 1 or not offline & {"s1", "s2"}


def test_a_preempted_request_does_not_resume_in_the_same_step() -> None:
    engine = MiniEngine(blocks=10)
    victim = engine.add(request("off", online=False, prompt=28, output=8))
    engine.step()
    engine.add(request("on", online=True, prompt=32, output=1, at=engine.now_s))
    plan = engine.step()
    assert "off" not in tokens_of(plan)
    assert victim.state is RequestState.PREEMPTED


def test_an_id_stands_once() -> None:
    engine = MiniEngine()
    engine.add(request("a", online=True))
    with pytest.raises(DuplicateRequestError, match="use another id"):
        engine.scheduler.add(request("a", online=True))


def test_the_state_machine_has_no_way_back_from_the_end() -> None:
    ended = request("a", online=True)
    ended.move(RequestState.FINISHED)
    with pytest.raises(StateError, match="FINISHED cannot become RUNNING"):
        ended.move(RequestState.RUNNING)


def test_shared_blocks_of_an_aborted_leader_do_not_hold_its_siblings() -> None:
    engine = MiniEngine(max_batched_tokens=BLOCK * 2)
    for i in range(3):
        engine.add(
            request(f"s{i}", online=False, prompt=24, prefix="d", shared_blocks=5, at=i / 1000)
        )
    engine.step()
    engine.abort("s0")
    engine.run()
    assert engine.ended == {"s0": 1, "s1": 1, "s2": 1}


def test_an_offline_request_waits_for_an_online_one_of_the_same_step_that_leads_it() -> None:
    """Design §3, invariant 6: one leader for each prefix that nobody has computed."""
    engine = MiniEngine()
    engine.add(request("on", online=True, prompt=20, prefix="p", shared_blocks=4))
    follower = engine.add(request("off", online=False, prompt=20, prefix="p", shared_blocks=4))
    engine.run()
    assert follower.hit_tokens == 16


def test_an_admission_whose_hit_ends_inside_a_block_takes_one_for_its_copy() -> None:
    """The copy is the request's own, so the blocks behind it are counted from there."""
    engine = MiniEngine(blocks=8)
    draft = StepDraft(engine.kv, block_size_tokens=BLOCK, tokens=64, seqs=4, offline_seqs=0)
    assert [draft.blocks_behind(hit, 3) for hit in (4, 5, 6, 8)] == [1, 1, 2, 1]
    hit = PrefixHit(tokens=6, free_blocks=2)
    draft.admit(request("off", online=False, prompt=10), hit, 4, reason="offline-admit")
    assert draft.blocks_left == 8 - 2 - 2  # what it found, the copy, and one for what is beyond it
    assert draft.adopted_blocks == 2


@pytest.mark.parametrize("online", [False, True])
def test_blocks_that_an_admission_found_come_free_with_no_victim_of_the_step(
    monkeypatch: pytest.MonkeyPatch, *, online: bool
) -> None:
    """Whoever gives way may have held them: the next victim's blocks are free for sure."""
    engine = MiniEngine()
    monkeypatch.setattr(engine.kv, "held_by_online", lambda *_: 2 if online else 0)
    draft = StepDraft(engine.kv, block_size_tokens=BLOCK, tokens=64, seqs=4, offline_seqs=2)
    found = PrefixHit(tokens=2 * BLOCK, free_blocks=0)  # blocks that requests hold
    draft.admit(request("new", online=False, prompt=12), found, 4, reason="offline-admit")
    left = draft.blocks_left
    freed = []
    for name in ("first", "second"):
        draft.drop(request(name, online=online), 3, reason="needs-room")
        freed.append(draft.blocks_left - left)
        left = draft.blocks_left
    assert freed == [1, 3]


@pytest.mark.parametrize("preset", ["weir", "bros-paged"])
def test_offline_requests_wait_for_the_block_in_which_their_hit_ends(
    monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    loose = [Slo(metric=m, statistic="p99", threshold_s=9.0) for m in (Metric.TTFT, Metric.TPOT)]
    engine = MiniEngine(preset=preset, slos=tuple(loose))
    comes = {"waits"}
    monkeypatch.setattr(
        engine.kv,
        "hit",
        lambda asked: PrefixHit(tokens=0, free_blocks=0, comes=asked.id in comes),
    )
    for name in ("waits", "runs"):
        engine.add(request(name, online=False))
    assert tokens_of(engine.step()) == {"runs": 8}
    comes.clear()
    assert tokens_of(engine.step())["waits"] == 8
