"""What holds for every plan: repeated it asks for nothing new, and the dying are left to die."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.operator.planning.worlds import (
    NOW,
    OPTIONAL,
    apply_job,
    apply_service,
    batch,
    batchjob,
    deployment_status,
    llmservice,
    observe_job,
    observe_service,
    replica,
    with_deployment,
)
from weir_operator.planning.batchjob import plan_batchjob
from weir_operator.planning.conditions import rfc3339
from weir_operator.planning.job_reasons import BATCH_JOB_REASONS
from weir_operator.planning.kinds import FINALIZER
from weir_operator.planning.llmservice import plan_llmservice
from weir_operator.planning.llmservice_reasons import LLM_SERVICE_REASONS
from weir_operator.planning.observed import (
    BatchReport,
    ObservedBatchJob,
    ObservedLLMService,
    PodReport,
    Refusal,
    ServiceReport,
)
from weir_operator.planning.types import CancelBatch, Plan, RegisterPods, ReleaseService

HPA = {"type": "HPA", "maxReplicas": 4, "metrics": [{"type": "Resource"}]}
KEDA = {"type": "KEDA", "maxReplicas": 4, "triggers": [{"type": "cron"}]}
REASONS = {
    (item.condition, item.status, item.name) for item in LLM_SERVICE_REASONS + BATCH_JOB_REASONS
}


@st.composite
def services(draw: st.DrawFn) -> ObservedLLMService:
    spec: dict[str, Any] = {
        "replicas": draw(st.integers(0, 3)),
        "colocation": {"enabled": draw(st.booleans())},
        "networkPolicy": {"enabled": draw(st.booleans())},
        "engine": {"backend": draw(st.sampled_from(["vllm", "torch", "tpu"]))},
        "slo": draw(
            st.sampled_from([[], [{"metric": "tbt", "statistic": "p99", "thresholdSeconds": 1}]])
        ),
        **draw(st.sampled_from([{}, {"autoscaling": HPA}, {"autoscaling": KEDA}])),
    }
    service = llmservice(**spec)
    if draw(st.booleans()):
        service["metadata"]["annotations"] = {
            "weir.dev/paused": draw(st.sampled_from(["true", "false", ""]))
        }
    pods = tuple(replica(number) for number in range(draw(st.integers(0, 3))))
    known = ServiceReport(
        model=draw(st.sampled_from(["chat", "old", None])),
        service_account="chat",
        pods=tuple(
            PodReport(uid=f"pod-{number}", name=f"chat-5d-{number}", state="serving")
            for number in range(draw(st.integers(0, 3)))
        ),
        policy_fresh=draw(st.sampled_from([True, False, None])),
        offline_tokens_per_s=draw(st.floats(0, 1e6)),
    )
    reached = draw(st.booleans())
    observed = observe_service(
        service,
        pods=pods,
        control_plane_reached=reached,
        report=known if reached and draw(st.booleans()) else None,
        optional_kinds=draw(st.sampled_from([OPTIONAL, frozenset()])),
    )
    if draw(st.booleans()) and spec["engine"]["backend"] != "tpu":
        plain = {**service, "metadata": {**service["metadata"], "annotations": {}}}
        status = deployment_status(draw(st.integers(0, 3)))
        made = with_deployment(replace(observed, service=plain), status)
        observed = replace(observed, children=made.children)
    if draw(st.booleans()):
        wishes = {child["kind"]: child for child in plan_llmservice(observed).children}
        refusal = Refusal(status_code=422, code="x", message="no", wish=wishes.get("Deployment"))
        observed = replace(observed, refusals={("Deployment", "chat"): refusal})
    return observed


@st.composite
def jobs(draw: st.DrawFn) -> ObservedBatchJob:
    spec: dict[str, Any] = {"suspend": draw(st.booleans()), "priority": draw(st.integers(-5, 5))}
    if draw(st.booleans()):
        spec["ttlSecondsAfterFinished"] = draw(st.integers(0, 100))
    if draw(st.booleans()):
        spec["deadline"] = rfc3339(NOW + timedelta(minutes=draw(st.integers(-60, 60))))
    if draw(st.booleans()):
        spec["input"] = {"configMapKeyRef": {"name": "lines", "key": "k"}}
    job = batchjob(**spec)
    if draw(st.booleans()):
        job["metadata"]["finalizers"] = [FINALIZER]
    if draw(st.booleans()):
        job["status"] = {"batchID": "batch_1", "model": "chat"}
    statuses = ["suspended", "pending", "validating", "in_progress", "delivering", "completed"]
    statuses += ["failed", "expired", "cancelling", "cancelled"]
    status = draw(st.sampled_from(statuses))
    report: BatchReport | None = None
    reached = draw(st.booleans())
    if reached and draw(st.booleans()):
        report = batch(
            status,
            batch_id=None if status in {"suspended", "pending"} else "batch_1",
            suspended=status == "suspended" or draw(st.booleans()),
            predicted_miss=draw(st.booleans()),
        )
    codes = draw(st.sampled_from([None, 400, 403, 429]))
    refusal = codes and Refusal(status_code=codes, code="x", message="no")
    return observe_job(
        job,
        service=draw(st.sampled_from([None, llmservice()])),
        config_map=draw(st.sampled_from([None, {"data": {"k": "{}\n"}}])),
        control_plane_reached=reached,
        report=report,
        refusal=refusal,
    )


@given(services())
def test_a_service_planned_again_asks_for_nothing_new(observed: ObservedLLMService) -> None:
    first = plan_llmservice(observed)
    second = plan_llmservice(apply_service(observed, first))
    world = apply_service(apply_service(observed, first), second)
    third = plan_llmservice(world)
    assert second.children == first.children
    assert second.removals == ()
    assert (third.status, third.events, third.removals) == (None, (), ())
    assert third.requests == second.requests
    assert third.children == first.children


@given(jobs())
def test_a_job_planned_again_asks_for_nothing_new(observed: ObservedBatchJob) -> None:
    plan = Plan()
    for _ in range(4):
        plan = plan_batchjob(observed)
        if plan.removals:
            return  # its time to live is over
        observed = apply_job(observed, plan)
    last = plan_batchjob(observed)
    assert (last.status, last.events, last.finalizer) == (None, (), None)
    assert last.requests == plan.requests


@given(services())
def test_of_a_service_that_is_being_deleted_only_its_pods_are_told(
    observed: ObservedLLMService,
) -> None:
    metadata = observed.service["metadata"] | {"deletionTimestamp": rfc3339(NOW)}
    plan = plan_llmservice(replace(observed, service={**observed.service, "metadata": metadata}))
    assert (plan.children, plan.removals, plan.status, plan.events) == ((), (), None, ())
    assert plan.finalizer is None
    assert all(isinstance(item, RegisterPods | ReleaseService) for item in plan.requests)


@given(jobs())
def test_of_a_job_that_is_being_deleted_only_its_batch_is_ended(observed: ObservedBatchJob) -> None:
    metadata = observed.job["metadata"] | {"deletionTimestamp": rfc3339(NOW)}
    plan = plan_batchjob(replace(observed, job={**observed.job, "metadata": metadata}))
    assert (plan.children, plan.removals, plan.status, plan.events) == ((), (), None, ())
    assert plan.finalizer is not True
    assert set(plan.requests) <= {CancelBatch(uid="job-1")}
    held = FINALIZER in metadata.get("finalizers", ())
    if not held:
        assert plan == type(plan)()
    late = replace(observed, now=NOW + timedelta(seconds=observed.finalizer_deadline_s))
    late_plan = plan_batchjob(replace(late, job={**observed.job, "metadata": metadata}))
    assert late_plan.finalizer is (False if held else None)


@given(jobs())
def test_nothing_that_could_run_is_made_without_the_finalizer(observed: ObservedBatchJob) -> None:
    plan = plan_batchjob(observed)
    after = apply_job(observed, plan)
    report = after.report
    if plan.requests and report is not None and report.batch_id is not None:
        assert FINALIZER in after.job["metadata"].get("finalizers", ())


@given(jobs())
def test_a_known_batch_is_only_asked_for_by_its_id(observed: ObservedBatchJob) -> None:
    if (observed.job.get("status") or {}).get("batchID"):
        for request in plan_batchjob(observed).requests:
            assert getattr(request, "batch_id", None) == "batch_1"


@given(st.one_of(services().map(plan_llmservice), jobs().map(plan_batchjob)))
def test_every_condition_is_in_the_table(plan: Plan) -> None:
    for item in (plan.status or {}).get("conditions", ()):
        assert (item["type"], item["status"], item["reason"]) in REASONS
        assert item["message"]
    for note in plan.events:
        assert note.reason in {name for _, _, name in REASONS}
