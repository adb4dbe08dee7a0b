"""What the control plane says of an LLMService: Registered, SLOMet, PolicyFresh and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weir_operator.planning.conditions import Finding, conditions_of, stands_s
from weir_operator.planning.context import ServiceContext
from weir_operator.planning.llmservice_reasons import LlmServiceReasons as Reasons
from weir_operator.planning.observed import ObservedBatchJob, ObservedLLMService, PodReport
from weir_operator.planning.types import PodIdentity, RegisterPods

MAX_PODS = 1_000
MAX_NAMED = 5
SLO_STANDS_S = 600.0
"""How long what was found of the objectives stands while nobody asks anything, and a miss that is
hardly over."""
MISS_ENDS_BELOW = 0.9
"""The share of its threshold below which every objective ends a miss at once. Batch work fills what
an objective leaves: from one minute to the next it would be held and missed in turns."""
Objective = tuple[str, str]
"""(metric, statistic)"""


def registration(context: ServiceContext, pods: tuple[PodIdentity, ...]) -> RegisterPods:
    """What the control plane should know of the service."""
    return RegisterPods(
        namespace=context.namespace,
        name=context.name,
        model=context.served_name,
        service_account=context.name,
        pods=pods,
    )


def registered(
    context: ServiceContext, observed: ObservedLLMService, pods: Sequence[PodIdentity]
) -> Finding:
    """Whether the control plane knows the pods."""
    refusal = observed.refusals.get((RegisterPods.__name__, context.name))
    if not context.spec.colocation.enabled:
        return Finding(reason=Reasons.NOT_COLOCATED, message="colocation.enabled is false")
    if not observed.control_plane_reached:
        return Finding(
            reason=Reasons.REGISTERED_UNKNOWN,
            message=f"{unreached(observed)}; online requests are not affected",
        )
    if refusal is not None and refusal.unanswered:
        return Finding(
            reason=Reasons.REGISTERED_UNKNOWN,
            message=f"{refusal.message}; online requests are not affected",
        )
    if refusal is not None:
        return Finding(reason=Reasons.REGISTRATION_REFUSED, message=refusal.message)
    report = observed.report
    same = (
        report is not None
        and report.model == context.served_name
        and report.service_account == context.name
        and {pod.uid for pod in report.pods} == {pod.uid for pod in pods}
    )
    if same:
        return Finding(reason=Reasons.REGISTERED, message="the control plane knows every pod")
    return Finding(reason=Reasons.REGISTERING, message="pods are being told to the control plane")


def unreached(observed: ObservedLLMService | ObservedBatchJob) -> str:
    """Why nothing is known of the control plane."""
    complaint = observed.control_plane_complaint
    if complaint is None:
        return "the control plane does not answer"
    return f"the control plane does not serve the operator: {complaint}"


def slo_met(
    context: ServiceContext, observed: ObservedLLMService, figures: Sequence[Mapping[str, Any]]
) -> Finding:
    """Whether every objective holds; ``figures`` as `slo_figures` gives them.

    They are of the last minute. What was found stands for a while, or a service that is asked
    something every other minute would change its condition, and send an Event, each time.
    """
    if not context.spec.slo:
        return Finding(
            reason=Reasons.SLO_NONE,
            message="spec.slo is empty: means of TBT and TTFT may be a tenth above what online "
            "requests would have alone",
        )
    missed = [item for item in figures if item.get("attained") is False]
    if missed:
        named = ", ".join(_objective(item) for item in missed)
        return Finding(reason=Reasons.SLO_MISSED, message=f"not held on every pod: {named}")
    if all(item.get("attained") is None for item in figures):
        silent = Finding(reason=Reasons.SLO_NOT_MEASURED, message="nothing was measured lately")
        return _found_lately(context, observed) or silent
    held = Finding(reason=Reasons.SLO_MET, message="every measured objective holds on every pod")
    return held if _miss_stands_s(context, observed) is None else _found(observed) or held


def slo_stands_s(context: ServiceContext, observed: ObservedLLMService) -> float | None:
    """How long what was found of the objectives stands yet, seconds; None: nothing such does."""
    silence_s = _silence_stands_s(context, observed)
    return _miss_stands_s(context, observed) if silence_s is None else silence_s


def _miss_stands_s(context: ServiceContext, observed: ObservedLLMService) -> float | None:
    """How long a miss stands yet though every objective is held; None: none does."""
    before = conditions_of(observed.service).get(Reasons.SLO_MET.condition, {})
    near = any(
        item.get("measuredSeconds", 0.0) > MISS_ENDS_BELOW * item["thresholdSeconds"]
        for item in slo_figures(context, observed)
    )
    missed = before.get("reason") == Reasons.SLO_MISSED.name and _same_objectives(context, observed)
    if not (near and missed):
        return None
    return stands_s(before, at_most_s=SLO_STANDS_S, now=observed.now)


def _silence_stands_s(context: ServiceContext, observed: ObservedLLMService) -> float | None:
    silence_s = observed.slo_silence_s
    measured = any(item.get("attained") is not None for item in slo_figures(context, observed))
    if measured or not context.spec.slo or observed.report is None or silence_s is None:
        return None
    return SLO_STANDS_S - silence_s if silence_s < SLO_STANDS_S else None


def _found_lately(context: ServiceContext, observed: ObservedLLMService) -> Finding | None:
    """What was found of these objectives when something was measured; None: that is too old."""
    stands = _silence_stands_s(context, observed) is not None
    return _found(observed) if stands and _same_objectives(context, observed) else None


def _same_objectives(context: ServiceContext, observed: ObservedLLMService) -> bool:
    """Whether the status is of the objectives that the service has now."""
    told = {
        (item["metric"], item["statistic"], item["thresholdSeconds"])
        for item in (observed.service.get("status") or {}).get("slo") or ()
    }
    return told == {
        (item.metric, item.statistic, item.threshold_seconds) for item in context.spec.slo
    }


def _found(observed: ObservedLLMService) -> Finding | None:
    """What the status says of the objectives; None: nothing was found yet."""
    before = conditions_of(observed.service).get(Reasons.SLO_MET.condition, {})
    for reason in (Reasons.SLO_MET, Reasons.SLO_MISSED):
        if before.get("reason") == reason.name:
            return Finding(reason=reason, message=str(before.get("message", "")))
    return None


def policy_fresh(context: ServiceContext, observed: ObservedLLMService) -> Finding:
    """Whether every serving pod has a leased policy."""
    report = observed.report
    if not context.spec.colocation.enabled or report is None or report.policy_fresh is None:
        return Finding(reason=Reasons.POLICY_UNKNOWN, message="nothing is reported of policies")
    if report.policy_fresh:
        return Finding(reason=Reasons.POLICY_FRESH, message="every serving pod has a leased policy")
    stale = sorted(
        pod.name
        for pod in report.pods
        if pod.state == "serving" and _fresh(pod, observed) is not True
    )
    more = f" and {len(stale) - MAX_NAMED} more" if len(stale) > MAX_NAMED else ""
    named = f"{', '.join(stale[:MAX_NAMED])}{more}" or "a pod, by the control plane's clock"
    return Finding(reason=Reasons.POLICY_STALE, message=f"without a leased policy: {named}")


def slo_figures(context: ServiceContext, observed: ObservedLLMService) -> list[dict[str, Any]]:
    """Each objective over all pods: the worst measured value, and whether all attain it."""
    by_objective: dict[Objective, list[Any]] = {}
    for pod in observed.report.pods if observed.report else ():
        for item in pod.slo:
            by_objective.setdefault((item.metric, item.statistic), []).append(item)
    figures = []
    for wanted in context.spec.slo:
        told = by_objective.get((wanted.metric, wanted.statistic), [])
        measured = [item.measured_s for item in told if item.measured_s is not None]
        answers = [item.attained for item in told if item.attained is not None]
        figures.append(
            without_none(
                {
                    "metric": wanted.metric,
                    "statistic": wanted.statistic,
                    "thresholdSeconds": wanted.threshold_seconds,
                    "measuredSeconds": rounded(max(measured)) if measured else None,
                    "attained": all(answers) if answers else None,
                }
            )
        )
    return figures


def pod_figures(observed: ObservedLLMService) -> list[dict[str, Any]]:
    """Each registered pod's threshold, budget and throughput, by name."""
    pods = observed.report.pods if observed.report else ()
    return [
        without_none(
            {
                "name": pod.name,
                "uid": pod.uid,
                "state": pod.state or "unknown",
                "policyFresh": _fresh(pod, observed),
                "totalKVBlocks": pod.total_kv_blocks,
                "offlineKVThresholdBlocks": pod.offline_kv_threshold_blocks,
                "stepBudgetSeconds": rounded(pod.step_budget_s),
                "offlineTokensPerSecond": rounded(pod.offline_tokens_per_s),
            }
        )
        for pod in sorted(pods, key=lambda item: item.name)[:MAX_PODS]
    ]


def rounded(value: float | None) -> float | None:
    """Two significant digits: a status is no time series, and each change of it is a write."""
    return None if value is None else float(f"{value:.2g}")


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _fresh(pod: PodReport, observed: ObservedLLMService) -> bool | None:
    return None if pod.policy_expires_at is None else pod.policy_expires_at > observed.now


def _objective(item: Mapping[str, Any]) -> str:
    measured = item.get("measuredSeconds")
    found = "" if measured is None else f" is {measured:g} s,"
    return f"{item['metric']} {item['statistic']}{found} allowed {item['thresholdSeconds']:g} s"
