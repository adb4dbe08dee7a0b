"""Steps of the same decodes are planned by repeating the last plan, and it is the same plan."""

import random
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

from tests.engine.sched.mini_engine import AsyncMiniEngine, MiniEngine, request
from weir_engine.config import Metric, Policy, Slo
from weir_engine.sched.account import OnlineLoad, StepLimit
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.plan import StepPlan
from weir_engine.sched.steady import SteadyDecodes

MEAN = Slo(metric=Metric.TBT, statistic="mean", threshold_s=0.0125, reference_s=0.012)
SLOS: dict[str, tuple[Slo, ...]] = {
    "none": (),
    "mean": (MEAN,),
    "tail": (Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.03),),
    "all": (
        MEAN,
        Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.03),
        Slo(metric=Metric.TTFT, statistic="mean", threshold_s=0.1),
        Slo(metric=Metric.TTFT, statistic="p99", threshold_s=0.2),
    ),
    "tpot": (Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.03),),
}


@dataclass
class Answers(MiniEngine):
    """Some of its answers end before they are as long as they may be, and the policy changes."""

    source: random.Random = field(default_factory=lambda: random.Random(5))  # noqa: S311

    def story(self) -> list[StepPlan]:
        for number in range(600):
            if self.source.random() < 0.05:
                self.add(request(f"on{number}", online=True, prompt=12, output=30, at=self.now_s))
            if number % 40 == 10:
                self.add(request(f"off{number}", online=False, prompt=16, output=6, at=self.now_s))
            if self.live and self.source.random() < 0.02:
                self.abort(self.source.choice(sorted(self.live)))
            if number % 150 == 100:
                slots = self.source.choice([0, 4, 64])
                self.scheduler.set_policy(Policy(offline_kv_blocks=400, offline_seq_slots=slots))
            self.step()
        return self.plans


@dataclass
class AsyncAnswers(Answers, AsyncMiniEngine):
    """The same with a step planned while the one before is computed."""


@pytest.mark.parametrize("slos", SLOS.values(), ids=SLOS)
@pytest.mark.parametrize("engine", [Answers, AsyncAnswers])
@pytest.mark.parametrize("blocks", [400, 24])
def test_a_repeated_plan_is_the_one_that_would_be_made(
    engine: type[Answers],
    slos: tuple[Slo, ...],
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeated = []
    made_again = SteadyDecodes.again

    def counted(*given: object) -> StepPlan | None:
        plan = made_again(*given)  # type: ignore[arg-type]  # as it was called
        repeated.append(plan is not None)
        return plan

    monkeypatch.setattr(SteadyDecodes, "again", counted)
    plans = engine(slos=slos, blocks=blocks).story()
    monkeypatch.setattr(SteadyDecodes, "again", lambda *_: None)
    assert plans == engine(slos=slos, blocks=blocks).story()
    assert sum(repeated) > 100, "hardly any plan was repeated"


class Counting(Bookkeeping):
    """Counts how often it is asked for a limit."""

    asked = 0

    @override
    def step_limit(self, load: OnlineLoad, *, stays: bool = True) -> StepLimit:
        self.asked += 1
        return super().step_limit(load, stays=stays)


def test_accounts_in_debt_are_asked_seldom_and_offline_work_runs_when_they_have_paid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weir_engine.sched.scheduler.Bookkeeping", Counting)
    made = MiniEngine(slos=(Slo(metric=Metric.TBT, statistic="mean", threshold_s=0.05),))
    made.add(request("on", online=True, prompt=8, output=200))
    made.step()
    made.add(request("off", online=False, prompt=40, output=40))
    books = made.scheduler._books
    assert isinstance(books, Counting)
    saving = 1
    while (plan := made.step()).shape == plan.online_shape:
        saving += 1
        assert saving < 190, "savings were never spent"
    assert saving > 100
    assert books.asked < saving / 4
