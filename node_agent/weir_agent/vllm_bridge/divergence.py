"""Whether vLLM did what was planned, and what it did instead. Pure comparisons.

Design §9: plan and act must be equal.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from weir_engine.errors import InvariantError
from weir_engine.ids import RequestId
from weir_engine.sched.plan import Preemption, StepPlan, Work


class DivergenceError(InvariantError):
    """vLLM scheduled something else than the plan; the message says what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """What differs: tokens as (planned, scheduled), hits as (planned, found), by request.

    ``preempted`` are requests that nobody planned to preempt.
    """

    tokens: Mapping[str, tuple[int, int]]
    hits: Mapping[str, tuple[int, int]]
    preempted: tuple[str, ...]

    def __str__(self) -> str:
        return (
            "vLLM did not schedule what was planned: tokens (planned, scheduled) "
            f"{dict(self.tokens)}, prefix hits (planned, found) {dict(self.hits)}, preempted "
            f"without a plan {list(self.preempted)}"
        )


def find_divergence(
    tokens: Mapping[str, int],
    hits: Mapping[str, int],
    output: Any,
    requests: Mapping[str, Any],
    extra_preempted: AbstractSet[str] = frozenset(),
) -> Divergence | None:
    """Compare planned tokens and hits with vLLM's output; None when they are equal.

    ``requests`` are vLLM's, after the step was scheduled; ``extra_preempted`` those that it
    preempted on its own.
    """
    scheduled: Mapping[str, int] = output.num_scheduled_tokens
    wrong_hits = {}
    for request_id, planned in hits.items():
        done = scheduled.get(request_id)
        if done is not None:
            found = requests[request_id].num_computed_tokens - done
            if found != planned:
                wrong_hits[request_id] = (planned, found)
    if scheduled == tokens and not wrong_hits and not extra_preempted:
        return None
    ids = [*tokens, *(request_id for request_id in scheduled if request_id not in tokens)]
    wrong = {
        request_id: (tokens.get(request_id, 0), scheduled.get(request_id, 0))
        for request_id in ids
        if tokens.get(request_id, 0) != scheduled.get(request_id, 0)
    }
    return Divergence(tokens=wrong, hits=wrong_hits, preempted=tuple(sorted(extra_preempted)))


def actual_plan(
    plan: StepPlan,
    planned: Mapping[RequestId, Work],
    preempted: AbstractSet[str],
    output: Any,
    requests: Mapping[str, Any],
) -> StepPlan | None:
    """The plan that vLLM carried out instead; None when it did nothing at all."""
    admitted = {new.req_id for new in output.scheduled_new_reqs}
    admitted |= output.scheduled_cached_reqs.resumed_req_ids
    work = []
    for name, tokens in output.num_scheduled_tokens.items():
        request_id = RequestId(name)
        known = planned.get(request_id)
        is_new = name in admitted
        work.append(
            Work(
                request_id=request_id,
                tokens=tokens,
                admitted=is_new,
                hit_tokens=requests[name].num_computed_tokens - tokens if is_new else 0,
                reason=known.reason if known is not None else "engine",
            )
        )
    preempt = {preemption.request_id: preemption for preemption in plan.preempt}
    for name in preempted:
        request_id = RequestId(name)
        preempt.setdefault(request_id, Preemption(request_id=request_id, reason="engine"))
    if not work and not preempt:
        return None
    return plan._replace(work=tuple(work), preempt=tuple(preempt.values()))
