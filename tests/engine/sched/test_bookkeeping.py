"""What is told later changes no answer: neither the books' own nor what the scheduler plans."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from tests.engine.sched.mini_engine import AsyncMiniEngine, MiniEngine, exact_model, request
from weir_engine.config import Metric, Slo
from weir_engine.latency.features import StepShape
from weir_engine.sched import scheduler
from weir_engine.sched.account import OnlineLoad, StepLimit, StepTimes
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.budget import SloBudget, StaticBudget
from weir_engine.sched.plan import StepPlan

SLOS: dict[str, tuple[Slo, ...]] = {
    "tails": (
        Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.03),
        Slo(metric=Metric.TTFT, statistic="p99", threshold_s=0.2),
    ),
    "means": (
        Slo(metric=Metric.TBT, statistic="mean", threshold_s=0.03, reference_s=0.02),
        Slo(metric=Metric.TTFT, statistic="mean", threshold_s=0.1),
    ),
    "tpot": (
        Slo(metric=Metric.TTFT, statistic="p90", threshold_s=0.2),
        Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.03),
    ),
}


class AtOnce(Bookkeeping):
    """Puts nothing off."""

    @override
    def without_offline(self, load: OnlineLoad) -> StepLimit:
        return self.step_limit(load)

    @override
    def step_limit(self, load: OnlineLoad, *, stays: bool = True) -> StepLimit:
        return super().step_limit(load, stays=False)

    @override
    def step(
        self, shape: StepShape, seconds: float | None, times: StepTimes, *, later: bool
    ) -> None:
        super().step(shape, seconds, times, later=False)


@dataclass
class History:
    """The same steps for whoever keeps books; each starts where the one before ended."""

    slos: tuple[Slo, ...]
    now_s: float = 0.0
    kept: Sequence[Bookkeeping] = field(init=False)

    def __post_init__(self) -> None:
        self.models = [exact_model(), exact_model()]
        budgets = [
            SloBudget(self.slos, model, over_alone=None if self.slos else 0.1)
            for model in self.models
        ]
        self.kept = (
            Bookkeeping(budgets[0], self.models[0]),
            AtOnce(budgets[1], self.models[1]),
        )

    def step(self, *, decoders: int, took_s: float, first: bool) -> None:
        load = OnlineLoad(
            now_s=self.now_s,
            decoders=decoders,
            earliest_token_s=self.now_s if decoders else None,
            prefills=int(first),
            base_s=0.01,
            idle_step_s=0.01,
        )
        self.now_s += took_s
        times = StepTimes(ended_s=self.now_s, duration_s=took_s, base_s=took_s, offline=False)
        shape = StepShape(decode_requests=decoders, prefill_tokens=8 * first)
        for books in self.kept:
            books.without_offline(load)
            books.step(shape, took_s, times, later=not first)
            if first:
                books.first_token(took_s, 0.0, None)
            for _ in range(decoders):
                books.token(took_s, 0.0, took_s - 0.02)

    def answers(self, *, prefill_first: bool) -> list[tuple[StepLimit | float, ...]]:
        load = OnlineLoad(
            now_s=self.now_s, decoders=2, earliest_token_s=self.now_s, base_s=0.01, idle_step_s=0.01
        )
        asked = ("prefill_limit", "step_limit")
        order = asked if prefill_first else asked[::-1]
        return [tuple(getattr(books, name)(load) for name in order) for books in self.kept]


@pytest.mark.parametrize("slos", [(), *SLOS.values()], ids=["no-slos", *SLOS])
@settings(max_examples=20)
@given(
    stretches=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 4), st.booleans(), st.sampled_from([1, 2, 5])),
        max_size=6,
    ),
    prefill_first=st.booleans(),
)
def test_an_answer_follows_from_all_that_was_told(
    slos: tuple[Slo, ...], stretches: list[tuple[int, int, bool, int]], prefill_first: bool
) -> None:
    history = History(slos)
    for steps, decoders, first, slow in stretches:
        for number in range(steps):
            took_s = 0.01 * slow * (1 + number % 3)
            history.step(decoders=decoders, took_s=took_s, first=first and not number)
        later, at_once = history.answers(prefill_first=prefill_first)
        assert later == at_once
        assert history.models[0].state() == history.models[1].state()


def test_no_more_than_some_steps_wait_for_a_question() -> None:
    history = History(SLOS["means"])
    for _ in range(1_000):
        history.step(decoders=1, took_s=0.01, first=False)
        assert history.models[1].observed_steps - history.models[0].observed_steps <= 16
    assert history.models[0].observed_steps > 900


class Counting(SloBudget):
    """Counts how often it is asked."""

    asked = 0

    @override
    def step_limit(self, load: OnlineLoad) -> StepLimit:
        self.asked += 1
        return super().step_limit(load)


def test_plans_that_are_never_sent_do_not_pile_up() -> None:
    budget = Counting(SLOS["means"], exact_model())
    books = Bookkeeping(budget, exact_model())
    for number in range(1_000):
        books.without_offline(OnlineLoad(now_s=number / 100, decoders=1))
    assert budget.asked > 900


def test_a_budget_that_keeps_no_accounts_says_its_limit() -> None:
    books = Bookkeeping(StaticBudget(0.5), exact_model())
    assert books.without_offline(OnlineLoad(now_s=0.0, decoders=1)).seconds == 0.5


@dataclass
class Noisy(MiniEngine):
    """Its steps take more or less than was predicted: there is something to learn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.noise = random.Random(3)  # noqa: S311 - a test's noise

    @override
    def cost_s(self, plan: StepPlan) -> float:
        return super().cost_s(plan) * self.noise.uniform(0.9, 1.4)


@dataclass
class AsyncNoisy(Noisy, AsyncMiniEngine):
    """The same with a step planned while the one before is computed."""


def story(made: Noisy) -> list[StepPlan]:
    """Online requests come and go, offline ones in between; the plans with offline work in them."""
    source = random.Random(7)  # noqa: S311 - a test's load
    for number in range(1_000):
        if source.random() < 0.05:
            name = f"on{number}"
            made.add(request(name, online=True, prompt=12, output=30, at=made.now_s))
        if number % 50 == 30:
            made.add(request(f"off{number}", online=False, prompt=16, output=6, at=made.now_s))
        made.step()
    return [plan for plan in made.plans if plan.shape != plan.online_shape]


@pytest.mark.parametrize("slos", SLOS.values(), ids=SLOS)
@pytest.mark.parametrize(
    ("engine", "accuracy"),
    [(Noisy, 0.0), (AsyncNoisy, 0.02)],  # what is under way was predicted before it was told
)
def test_the_scheduler_plans_the_same_as_when_it_tells_everything_at_once(
    engine: type[Noisy],
    accuracy: float,
    slos: tuple[Slo, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = engine(slos=slos, blocks=400)
    told = story(later)
    monkeypatch.setattr(scheduler, "Bookkeeping", AtOnce)
    at_once = engine(slos=slos, blocks=400)
    story(at_once)
    assert len(later.plans) - len(told) > 100, "nothing was put off"
    assert [plan.work for plan in later.plans] == [plan.work for plan in at_once.plans]
    same = {plan.step: plan for plan in at_once.plans}
    for plan in told:
        asked = same[plan.step]
        assert plan.predicted_s == pytest.approx(asked.predicted_s, rel=accuracy, abs=0)
        assert plan.limit_s == pytest.approx(asked.limit_s, rel=accuracy, abs=0)
    assert later.scheduler.model.state() == at_once.scheduler.model.state()
