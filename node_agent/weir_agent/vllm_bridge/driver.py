"""Carries each plan into vLLM's scheduler and each result back to the planner.

Called by the mixin around vLLM's own methods. It decides nothing: what cannot be done right now
(a paused engine, output still in flight) is left out of the plan before the planner counts on it.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from weir_agent.vllm_bridge.arrange import Arrangement
from weir_agent.vllm_bridge.base import VllmScheduler
from weir_agent.vllm_bridge.comings import Comings
from weir_agent.vllm_bridge.divergence import (
    Divergence,
    DivergenceError,
    actual_plan,
    find_divergence,
)
from weir_agent.vllm_bridge.grammars import take_over_compiler
from weir_agent.vllm_bridge.intake import Intake
from weir_agent.vllm_bridge.messages import BridgeSettings
from weir_agent.vllm_bridge.outcome import read_outcome
from weir_agent.vllm_bridge.parking import Parking
from weir_agent.vllm_bridge.planner import Planner, PlannerFactory
from weir_agent.vllm_bridge.pool import eviction_of, shape_of, take_over_pool
from weir_agent.vllm_bridge.readiness import Readiness
from weir_agent.vllm_bridge.recorder import Recorder
from weir_agent.vllm_bridge.stats_pace import StatsPace
from weir_agent.vllm_bridge.step_file import StepFile
from weir_agent.vllm_bridge.steps import StepLog, StepTiming
from weir_engine.config import ONLINE_ONLY, Policy
from weir_engine.sched.plan import StepPlan

_log = structlog.get_logger(__name__)

RETRY_S: Final = 0.001
"""An admission that was put off is planned again after so long."""

GRAMMAR_POLL_S: Final = 0.005
"""Whether a grammar is compiled is looked at so often while nothing else can be done."""


class StepDriver:
    """Weir's side of one vLLM scheduler.

    ``step`` is what vLLM may do in the current step; its hooks read it. Order of calls for a step:
    ``before_schedule``, ``after_schedule``, ``after_launch``, ``before_update``, ``after_update``;
    requests come and go between any two of them, by way of ``comings``.
    """

    def __init__(
        self,
        vllm: VllmScheduler,
        *,
        settings: BridgeSettings,
        planner_factory: PlannerFactory,
        asynchronous: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vllm = vllm
        self._clock = clock
        self._strict = settings.strict
        self._ready = Readiness(vllm, asynchronous=asynchronous)
        grammars = take_over_compiler(
            vllm.structured_output_manager, most_s=settings.grammar_timeout_s, clock=clock
        )
        self.intake = Intake(vllm, clock=clock, grammars=grammars)
        # The plan decides what is admitted; vLLM's own gate on whole prompts would second-guess it.
        vllm.scheduler_reserve_full_isl = False
        parts = take_over_pool(
            vllm.kv_cache_manager,
            block_size_tokens=vllm.block_size,
            eviction=eviction_of(settings),
            is_online=self.intake.is_online,
            tokens=self.intake.tokens,
            partial_hits=settings.partial_hits,
        )
        self.queue, self.ledger, self.kv = parts.queue, parts.ledger, parts.kv
        self.step = Arrangement(vllm, self.kv, self.intake.known)
        now_s = clock()
        policy = ONLINE_ONLY if settings.policy is None else settings.policy.policy(now_s)
        self.planner: Planner = planner_factory(settings, shape_of(vllm), self.kv, policy)
        self._guard(policy)
        self.recorder = Recorder()
        self._step_file = (
            None if settings.step_file is None else StepFile(settings.step_file, shape_of(vllm))
        )
        self.parking = Parking(clock)
        self.comings = Comings(
            vllm,
            planner=self.planner,
            intake=self.intake,
            pool=parts,
            parking=self.parking,
            clock=clock,
        )
        details = vllm.vllm_config.observability_config.enable_logging_iteration_details
        self.stats_pace = StatsPace(clock, always=details)
        self._steps = StepLog(asynchronous=asynchronous)
        self.divergences = 0
        self._turns = 0
        self._plan: StepPlan | None = None
        self._idle_s: float | None = None
        self._exact = True
        self._ending: tuple[StepPlan | None, StepTiming] | None = None
        self._spent_s = 0.0

    # -- a step is scheduled ----------------------------------------------------------------

    def before_schedule(self) -> None:
        """Plan, preempt, and arrange vLLM's queues so that it can do nothing but the plan.

        Raises:
            DivergenceError: in strict mode, when the plan admits what there is no room for.
        """
        entered_s = time.perf_counter()
        self._turns += 1
        now_s = self._clock()
        if self.intake.blocked:
            self.comings.unblock()
        plan = self._make_plan(now_s)
        self.comings.preempted.clear()
        self.step.clear()
        if plan is not None:
            planned = plan
            plan = self.step.apply(plan)
            if plan is not planned:
                self._exact = False
                self._idle_s = RETRY_S  # the next plan knows better; nothing else might wake it
                if self._strict:
                    raise DivergenceError(
                        f"step {plan.step} was planned without the blocks of its admissions: "
                        f"{len(planned.work) - len(plan.work)} had to be put off"
                    )
        self._plan = plan if plan is not None and (plan.work or plan.preempt) else None
        self._spent_s = time.perf_counter() - entered_s

    def after_schedule(self, output: Any) -> None:
        """Hold what vLLM scheduled against the plan and tell the planner that it began.

        Raises:
            DivergenceError: in strict mode, when they differ.
        """
        entered_s = time.perf_counter()
        self.step.release()
        plan, exact = self._plan, self._exact
        extra = self.comings.preempted
        if extra and plan is not None:
            extra = extra.difference(preemption.request_id for preemption in plan.preempt)
        divergence = find_divergence(
            self.step.tokens, self.step.hits, output, self._vllm.requests, extra_preempted=extra
        )
        if divergence is not None:
            plan, exact = self._diverged(plan, output, divergence), False
        self.ledger.scheduled(output, self.intake.known, self._clock())
        if self._step_file is not None:
            self._step_file.sent(plan, self.intake.known)
        if plan is not None:
            self.planner.begin(plan)
            if plan.preempt or self.step.hits:
                self.comings.began(plan)
        now_s = self._clock()
        self._steps.sent(output, plan, scheduled_s=now_s, exact=exact)
        if plan is None:
            self._park(now_s)
        self._spent_s += time.perf_counter() - entered_s

    def after_launch(self, output: Any) -> None:
        """The step's work was given to the device, all but its sampling."""
        self._steps.launched(output, self._clock())

    def _make_plan(self, now_s: float) -> StepPlan | None:
        self._exact = True
        self._idle_s = None
        if self._ready.stopped:
            return None
        plan = self.planner.plan(now_s)
        self._idle_s = plan.idle_s
        if not self._ready.takes_all:
            taken = tuple([work for work in plan.work if self._ready.takes(work)])
            if len(taken) < len(plan.work):
                self._exact = False
                plan = plan._replace(work=taken)
        return plan if plan.work or plan.preempt else None

    def _diverged(
        self, plan: StepPlan | None, output: Any, divergence: Divergence
    ) -> StepPlan | None:
        self.divergences += 1
        if self._strict:
            raise DivergenceError(str(divergence))
        _log.warning("weir.divergence", detail=str(divergence))
        planned = {work.request_id: work for work in plan.work} if plan is not None else {}
        basis = plan if plan is not None else self.planner.plan(self._clock())
        return actual_plan(basis, planned, self.comings.preempted, output, self._vllm.requests)

    def _park(self, now_s: float) -> None:
        if self._vllm.grammar_compile_error_reqs or not self._ready.admitting:
            return
        idle_s = self._idle_s
        if self.intake.blocked:
            idle_s = GRAMMAR_POLL_S if idle_s is None else min(idle_s, GRAMMAR_POLL_S)
        self.parking.park(
            now_s,
            idle_s=idle_s,
            waiting=bool(self.intake.known),
            online=self.intake.online > 0 and self._steps.computing == 0,
        )

    # -- a step ended -----------------------------------------------------------------------

    def before_update(self, output: Any) -> None:
        """The output of a step is there."""
        self._ending = self._steps.ended(output, self._clock())

    def after_update(self, outputs: dict[int, Any]) -> None:
        """The output has been processed: tell the planner."""
        self.intake.explain(outputs)
        plan, timing = self._ending if self._ending is not None else (None, None)
        self._ending = None
        if plan is None or timing is None:
            self.intake.bundles.bundle(outputs)
            return
        entered_s = time.perf_counter()
        outcome = read_outcome(
            outputs,
            self.intake.known,
            timing,
            self.recorder,
            streams=self.intake.streams,
            in_flight=self._steps.in_flight,
        )
        self.intake.bundles.bundle(outputs)
        self.planner.commit(plan, outcome)
        for request_id in outcome.finished:
            self.comings.forget(request_id)
        if self._step_file is not None:
            self._step_file.ended(plan, timing, more=bool(self.intake.known))
        self.parking.unpark()
        self.recorder.step(
            timing.ended_s,
            duration_s=timing.ended_s - timing.started_s,
            predicted_s=plan.predicted_s,
            timed=timing.timed,
            bridge_s=self._spent_s + time.perf_counter() - entered_s,
        )

    # -- asked and told from outside ----------------------------------------------------------

    def unpark(self) -> None:
        """Something changed: plan again."""
        self.parking.unpark()

    def now_s(self) -> float:
        """The scheduler's clock."""
        return self._clock()

    def set_policy(self, policy: Policy) -> None:
        """Replace the policy; it binds the next step."""
        self.planner.set_policy(policy)
        self._guard(policy)
        self.parking.unpark()

    def telemetry(self) -> dict[str, Any]:
        """What the agent is told: plain types, fixed size."""
        now_s = self._clock()
        return {
            **self.planner.telemetry(),
            **self.recorder.report(now_s),
            "now_s": now_s,
            **self.kv.levels(),
            "online_reuse_blocks": self.ledger.reuse.kept_blocks(now_s),
            "turns": self._turns,
            "divergences": self.divergences,
            "admissions_put_off": self.step.put_off,
            "requests": len(self.intake.known),
            "online_requests": self.intake.online,
        }

    def latency_profile(self) -> dict[str, Any]:
        """The planner's latency model as plain data; empty when it has none."""
        model = getattr(self.planner, "model", None)
        return {} if model is None else dict(model.state())

    def close(self) -> None:
        """The engine stops."""
        self.parking.close()
        if self._step_file is not None:
            self._step_file.close()

    def _guard(self, policy: Policy) -> None:
        """What offline work may not pin is kept for the prefixes that online used last."""
        self.queue.free.set_guard(max(0, self.kv.total_blocks - policy.offline_kv_blocks))
