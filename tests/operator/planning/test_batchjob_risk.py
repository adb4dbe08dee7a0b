"""AtRisk of a BatchJob: deadlines that pass, and forecasts that cross them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.planning.test_batchjob import running
from tests.operator.planning.worlds import NOW, batch, condition, message, observe_job
from weir_operator.planning.batchjob import plan_batchjob
from weir_operator.planning.conditions import rfc3339
from weir_operator.planning.types import Plan

DEADLINE = NOW + timedelta(hours=3)


def test_a_predicted_miss_puts_the_job_at_risk() -> None:
    deadline = rfc3339(NOW + timedelta(minutes=30))
    observed = observe_job(running(deadline=deadline), report=batch(predicted_miss=True))
    plan = plan_batchjob(observed)
    assert condition(plan.status, "AtRisk") == ("True", "PredictedMiss")
    assert deadline in message(plan.status, "AtRisk")
    assert plan.requeue_after_s == 1800
    assert [(note.type, note.reason) for note in plan.events if note.reason == "PredictedMiss"] == [
        ("Warning", "PredictedMiss")
    ]


def test_a_deadline_that_has_passed_is_at_risk_whatever_the_forecast_says() -> None:
    observed = observe_job(running(deadline=rfc3339(NOW)), report=batch(eta_at=None))
    assert condition(plan_batchjob(observed).status, "AtRisk") == ("True", "DeadlinePassed")


def test_without_a_forecast_the_reason_of_the_control_plane_is_said() -> None:
    report = batch(eta_at=None, waiting_reason="no_matching_model")
    plan = plan_batchjob(observe_job(running(), report=report))
    assert condition(plan.status, "AtRisk") == ("Unknown", "NoForecast")
    assert message(plan.status, "AtRisk") == "no_matching_model"
    assert plan.status is not None
    assert "eta" not in plan.status


def look(
    known: Mapping[str, object] | None,
    minute: float,
    late_min: float | None,
    **given: Any,  # noqa: ANN401
) -> Plan:
    """The plan of a job with this status, its end forecast so late (before the deadline: < 0)."""
    eta_at = None if late_min is None else DEADLINE + timedelta(minutes=late_min)
    told = {"eta_at": eta_at, "predicted_miss": late_min is not None and late_min > 0}
    spec = {"deadline": rfc3339(DEADLINE), **given.pop("spec", {})}
    now = NOW + timedelta(minutes=minute)
    return plan_batchjob(
        observe_job(running(known, **spec), report=batch(**(told | given)), now=now)
    )


def minutes_of(*late_min: float) -> tuple[list[str], list[str]]:
    """What AtRisk says, and its Events, of so many looks a minute apart."""
    known: Mapping[str, object] | None = None
    said, noted = [], []
    for minute, late in enumerate(late_min):
        plan = look(known, minute, late)
        known = plan.status or known
        said.append(condition(known, "AtRisk")[1])
        noted += [note.reason for note in plan.events if note.reason == "PredictedMiss"]
    return said, noted


def missed(**over: object) -> dict[str, Any]:
    """The status of a job whose miss was predicted now."""
    status = look(None, 0, 1).status
    assert status is not None
    changed = [
        {**item, **over} if item["type"] == "AtRisk" else item for item in status["conditions"]
    ]
    return {**status, "conditions": changed}


def test_a_miss_that_is_predicted_in_turns_sends_few_events() -> None:
    """Of work that just about fits, each commit moves the forecast across the deadline."""
    said, noted = minutes_of(*[-1, 1] * 5)
    assert said == ["OnTime", *["PredictedMiss"] * 9]
    assert noted == ["PredictedMiss"]


@pytest.mark.parametrize(
    ("late_min", "last"),
    [
        ([1, -90], "OnTime"),  # far before it
        ([1, -18], "OnTime"),  # a tenth of what is left
        ([1, -17], "PredictedMiss"),
        ([1, *[-1] * 9], "PredictedMiss"),
        ([1, *[-1] * 10], "OnTime"),  # ten minutes old
    ],
)
def test_a_predicted_miss_ends_where_it_is_well_over_or_old(
    late_min: list[float], last: str
) -> None:
    said, _ = minutes_of(*late_min)
    assert said[-1] == last


def test_a_predicted_miss_that_stands_is_looked_at_when_it_is_old() -> None:
    plan = look(missed(), 1, -1)
    assert plan.requeue_after_s == 540.0  # nobody else would tell that it is over
    assert condition(look(missed(), 10, -1).status, "AtRisk") == ("False", "OnTime")


def test_a_predicted_miss_of_a_window_stands_too() -> None:
    window = {"spec": {"deadline": None}, "expires_at": DEADLINE}
    first = look(None, 0, 1, **window)
    assert condition(look(first.status, 1, -1, **window).status, "AtRisk")[1] == "PredictedMiss"


def test_a_miss_of_another_deadline_and_one_of_a_batch_that_ended_do_not_stand() -> None:
    moved = look(missed(), 1, -1, spec={"deadline": rfc3339(DEADLINE + timedelta(minutes=1))})
    assert condition(moved.status, "AtRisk") == ("False", "OnTime")
    over = look(missed(), 1, -1, status="completed", completed_lines=300)
    assert condition(over.status, "AtRisk") == ("False", "Ended")
    gone = look(missed(), 1, None)
    assert condition(gone.status, "AtRisk") == ("Unknown", "NoForecast")


@pytest.mark.parametrize(
    "written", ["9999-12-31T23:59:59Z", rfc3339(NOW + timedelta(hours=1)), "2026-05-04T12:00:00"]
)
def test_a_time_that_cannot_be_of_now_holds_no_miss(written: str) -> None:
    """The clock was put back, or it is somebody else's: the miss would stand for ever."""
    plan = look(missed(lastTransitionTime=written), 1, -1)
    assert condition(plan.status, "AtRisk") == ("False", "OnTime")


@pytest.mark.parametrize("written", ["yesterday", "", None])
def test_of_a_status_that_nobody_can_read_nothing_is_changed(written: str | None) -> None:
    assert look(missed(lastTransitionTime=written), 1, -1) == Plan()
