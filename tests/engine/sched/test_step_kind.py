"""Steps of prompts and steps of decodes, where both in one would take longer than two of them."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.engine.sched.mini_engine import (
    STEP_S,
    TOKEN_S,
    AsyncMiniEngine,
    MiniEngine,
    exact_model,
    request,
)
from weir_engine.config import ONLINE_ONLY, Metric, Slo
from weir_engine.latency.features import StepShape
from weir_engine.latency.models import create
from weir_engine.sched.plan import StepPlan
from weir_engine.sched.step_kind import StepKind, counts_offline_decodes, kind_of
from weir_engine.sched.tbt_tail import TailTbtAccount

# A decode over 100 tokens takes 1 ms, beside a prompt 21: two of them more than three steps.
DEAR_S = 0.0002
TBT = Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.1)
IN_TIME_S = 0.98 * TBT.threshold_s


def engine(*, mixed_s: float = DEAR_S, slos: tuple[Slo, ...] = ()) -> MiniEngine:
    return MiniEngine(mixed_s=mixed_s, slos=slos, blocks=1_000, max_batched_tokens=128)


def decoding(made: MiniEngine, *, online: bool, count: int = 2, output: int = 40) -> list[str]:
    """Requests of 100 tokens that have their first one."""
    names = [f"{'on' if online else 'off'}{i}" for i in range(count)]
    for name in names:
        made.add(request(name, online=online, prompt=100, output=output, at=made.now_s))
    while any(made.live[name].output_tokens < 1 for name in names):
        made.step()
    made.step()
    return names


def who(plan: StepPlan) -> dict[str, int]:
    return {work.request_id: work.tokens for work in plan.work}


def mixes(plans: list[StepPlan]) -> list[bool]:
    return [bool(p.shape.prefill_requests and p.shape.decode_requests) for p in plans]


@pytest.mark.parametrize(
    ("contexts", "wait", "kind"),
    [
        ([], False, StepKind.HYBRID),
        ([70], False, StepKind.HYBRID),  # 14 ms of 15
        ([80], False, StepKind.PREFILL),
        ([40, 40], False, StepKind.PREFILL),
        ([80], True, StepKind.DECODE),
    ],
)
def test_the_kind_follows_from_what_decodes_cost_beside_a_prompt(
    contexts: list[int], wait: bool, kind: StepKind
) -> None:
    model = exact_model(mixed_s=DEAR_S)
    assert kind_of(model, StepShape.of_decodes(contexts), decodes_wait=wait) is kind


@pytest.mark.parametrize("name", ["hygen", "echo", "bros", "modulewise"])
def test_models_without_that_price_split_nothing(name: str) -> None:
    decodes = StepShape.of_decodes([10_000] * 100)
    assert create(name).mixed_s(decodes) == 0.0


def test_an_online_prompt_and_the_decodes_take_turns() -> None:
    made = engine()
    decoders = decoding(made, online=True)
    made.add(request("new", online=True, prompt=200, at=made.now_s))
    plans = [made.step() for _ in range(4)]
    assert who(plans[0]) == {"new": 128}
    assert plans[0].held == tuple(decoders)
    assert who(plans[1]) == dict.fromkeys(decoders, 1)
    assert who(plans[2]) == {"new": 72}
    assert plans[3].shape.decode_requests == 3
    kinds = [plan.kind for plan in plans]
    assert kinds[:3] == [StepKind.PREFILL, StepKind.DECODE, StepKind.PREFILL]


@pytest.mark.parametrize("mixed_s", [0.0, 0.00005])
def test_where_mixing_is_cheap_they_share_a_step(mixed_s: float) -> None:
    made = engine(mixed_s=mixed_s)
    decoders = decoding(made, online=True)
    made.add(request("new", online=True, prompt=50, at=made.now_s))
    assert who(made.step()) == {"new": 50, **dict.fromkeys(decoders, 1)}


def test_a_prompt_alone_ends_so_early_that_its_decodes_are_in_time() -> None:
    """Of 100 ms between tokens 12 are for the decodes, 10 for a step, and 2 are kept."""
    made = engine(slos=(TBT,))
    decoding(made, online=True)
    made.add(request("new", online=True, prompt=100, at=made.now_s))
    plan = made.step()
    assert who(plan) == {"new": 75}
    started_s = made.now_s - plan.predicted_s
    made.step()
    assert IN_TIME_S - TOKEN_S - 1e-9 <= made.now_s - started_s <= IN_TIME_S


@pytest.mark.parametrize(("threshold_s", "tokens"), [(0.023, 100), (0.035, 11)])
def test_a_prompt_runs_whole_where_its_step_has_no_time_beside_the_decodes(
    threshold_s: float, tokens: int
) -> None:
    """12 ms are for the decodes and 10 for the step itself: chunks would be late, every one."""
    slo = Slo(metric=Metric.TBT, statistic="p99", threshold_s=threshold_s)
    made = engine(slos=(slo, Slo(metric=Metric.TTFT, statistic="p99", threshold_s=1.0)))
    decoding(made, online=True)
    made.add(request("new", online=True, prompt=100, at=made.now_s))
    assert who(made.step()) == {"new": tokens}


def test_offline_prompts_leave_time_for_the_decodes_of_both_classes() -> None:
    made = engine(slos=(TBT,))
    online, offline = decoding(made, online=True), decoding(made, online=False)
    made.add(request("late", online=False, prompt=100, at=made.now_s))
    plans = [made.step() for _ in range(2)]
    assert who(plans[0]) == {"late": 73}
    assert who(plans[1]) == dict.fromkeys([*online, *offline], 1)
    both_s = sum(plan.predicted_s for plan in plans)
    assert IN_TIME_S - TOKEN_S - 1e-9 <= both_s <= IN_TIME_S


@pytest.mark.parametrize(("statistic", "shares"), [("p99", True), ("mean", False)])
def test_under_a_percentile_dear_offline_decodes_alone_keep_no_offline_prompt_away(
    statistic: str, shares: bool
) -> None:
    slo = Slo(metric=Metric.TBT, statistic=statistic, threshold_s=0.1)
    made = engine(slos=(slo,))
    decoding(made, online=False)
    made.add(request("cheap", online=True, prompt=4, output=40, at=made.now_s))
    while made.live["cheap"].output_tokens < 2:
        made.step()
    made.add(request("late", online=False, prompt=60, at=made.now_s))
    plan = made.step()
    assert plan.kind is StepKind.HYBRID or not shares
    assert ("late" in who(plan)) is shares


def test_under_a_percentile_offline_work_alone_is_split() -> None:
    made = engine(slos=(TBT,))
    decoding(made, online=False)
    made.add(request("late", online=False, prompt=60, at=made.now_s))
    assert made.step().kind is StepKind.PREFILL


@pytest.mark.parametrize(
    ("metric", "statistic", "counts"),
    [
        (Metric.TTFT, "p99", True),
        (Metric.TBT, "p99", False),
        (Metric.TPOT, "p90", False),
        (Metric.TBT, "mean", True),
    ],
)
def test_which_objectives_have_offline_decodes_count(
    metric: Metric, statistic: str, counts: bool
) -> None:
    slo = Slo(metric=metric, statistic=statistic, threshold_s=0.1)
    assert counts_offline_decodes([slo]) is counts
    assert counts_offline_decodes([])


def test_offline_work_alone_is_split_too_and_takes_less_time_for_it() -> None:
    def run(price_s: float) -> MiniEngine:
        """Planned with that price; what it costs is ``DEAR_S``."""
        made = engine(mixed_s=price_s)
        made.mixed_s = DEAR_S
        for i in range(12):
            made.add(request(f"off{i}", online=False, prompt=100, output=20))
        made.run()
        return made

    split, mixed = run(DEAR_S), run(0.0)
    assert not any(mixes(split.plans))
    assert sum(mixes(mixed.plans)) >= 5  # before it has learnt the price
    assert split.now_s < 0.75 * mixed.now_s


def test_where_no_prompt_can_join_the_decodes_go_on() -> None:
    made = MiniEngine(mixed_s=DEAR_S, blocks=1_000, max_batched_tokens=128, max_seqs=2)
    decoders = decoding(made, online=False)
    made.add(request("waits", online=False, prompt=100))
    for _ in range(4):
        assert who(made.step()) == dict.fromkeys(decoders, 1)


@pytest.mark.parametrize(("max_seqs", "blocks"), [(2, 1_000), (8, 54)])
def test_an_online_prompt_without_room_does_not_hold_the_decodes_up(
    max_seqs: int, blocks: int
) -> None:
    """Nor where no offline work may run: nothing else would ever join the step."""
    made = MiniEngine(mixed_s=DEAR_S, blocks=blocks, max_batched_tokens=128, max_seqs=max_seqs)
    made.scheduler.set_policy(ONLINE_ONLY)
    decoders = decoding(made, online=True)
    made.add(request("waits", online=True, prompt=50, output=5, at=made.now_s))
    for _ in range(4):
        assert who(made.step()) == dict.fromkeys(decoders, 1)
    for _ in range(200):
        if not made.live:
            break
        made.step()
    assert not made.live


def test_offline_prompts_that_have_no_block_do_not_hold_online_decodes_up() -> None:
    made = MiniEngine(mixed_s=DEAR_S, blocks=80, max_batched_tokens=128)
    decoders = decoding(made, online=True)
    made.add(request("large", online=False, prompt=200))
    for _ in range(4):
        plan = made.step()
        assert who(plan) == dict.fromkeys(decoders, 1)
        assert plan.predicted_s == pytest.approx(STEP_S + 2 * TOKEN_S)


@pytest.mark.parametrize("make", [MiniEngine, AsyncMiniEngine])
def test_no_decode_waits_for_more_than_one_step(make: Callable[..., MiniEngine]) -> None:
    made = make(mixed_s=DEAR_S, blocks=1_000, max_batched_tokens=128)
    decoding(made, online=True)
    for i in range(8):
        made.add(request(f"p{i}", online=True, prompt=120, output=12, at=made.now_s))
    made.run()
    kinds = [plan.kind for plan in made.plans]
    assert StepKind.PREFILL in kinds
    assert (StepKind.PREFILL, StepKind.PREFILL) not in list(pairwise(kinds))


def test_the_delay_of_a_token_counts_the_offline_prompts_that_it_waited_for() -> None:
    """A mean of TBT pays for the step that leaves its decodes out, and stops when that is spent."""
    mean = Slo(metric=Metric.TBT, statistic="mean", threshold_s=0.020, reference_s=0.012)
    made = engine(slos=(mean,))
    decoders = decoding(made, online=True, output=900)
    for i in range(40):
        made.add(request(f"off{i}", online=False, prompt=100, output=1, at=made.now_s))
    started_s, before = made.now_s, len(made.plans)
    while any(name in made.live for name in decoders):
        made.step()
    tokens = sum(plan.online_shape.decode_requests > 0 for plan in made.plans[before:])
    prompts = sum(plan.kind is StepKind.PREFILL for plan in made.plans[before:])
    assert prompts >= 2
    assert (made.now_s - started_s) / tokens <= mean.threshold_s


def test_offline_prompts_are_to_blame_for_what_a_decode_waited_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[float, float]] = []
    monkeypatch.setattr(
        TailTbtAccount, "on_token", lambda _self, tbt_s, delay_s: told.append((tbt_s, delay_s))
    )
    made = engine(slos=(TBT,))
    decoding(made, online=True)
    made.add(request("late", online=False, prompt=100, at=made.now_s))
    prompts = made.step()
    told.clear()
    made.step()
    assert prompts.kind is StepKind.PREFILL
    alone_s = STEP_S + 2 * TOKEN_S
    assert len(told) == 2
    for tbt_s, delay_s in told:
        assert tbt_s == pytest.approx(prompts.predicted_s + alone_s)
        assert delay_s == pytest.approx(prompts.predicted_s)
