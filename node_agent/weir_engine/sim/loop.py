"""Runs the production scheduler in virtual time: arrivals, plans, steps, records.

Arrivals during a step wait for its end, and for that of the one queued behind it if there is one.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from typing import NamedTuple, Protocol

from weir_engine.ids import RequestClass
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sim.clock import VirtualClock
from weir_engine.sim.engine import Executed, Running, SimEngine
from weir_engine.sim.events import Arrivals
from weir_engine.sim.records import RequestRecord, SimResult, StepRecord
from weir_engine.sim.workload import RequestSpec


class Planner(Protocol):
    """A scheduler, Weir's or a baseline's."""

    def add(self, request: Request) -> None:
        """A request arrives."""
        ...

    def plan(self, now_s: float) -> StepPlan:
        """Decide the next step; changes nothing."""
        ...

    def begin(self, plan: StepPlan) -> None:
        """The plan was sent to the engine."""
        ...

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """The step ended."""
        ...


class Feeder(Protocol):
    """Where offline requests come from, a few at a time."""

    def take(self, *, now_s: float, unfinished: int) -> list[RequestSpec]:
        """Requests to hand to the engine now, which has ``unfinished`` offline ones."""
        ...

    def online_ended(self, record: RequestRecord) -> None:
        """An online request ended: its latencies are known now."""
        ...


class Window:
    """Keeps up to ``size`` offline requests in the engine, in the order given.

    Windows over one iterator share it: each takes the next ones when it has room.
    """

    def __init__(self, specs: Iterable[RequestSpec], *, size: int) -> None:
        self._rest: Iterator[RequestSpec] = iter(specs)
        self._size = size

    def take(self, *, now_s: float, unfinished: int) -> list[RequestSpec]:  # noqa: ARG002
        """Fills the window up."""
        return list(islice(self._rest, max(self._size - unfinished, 0)))

    def online_ended(self, record: RequestRecord) -> None:
        """Makes no difference."""


class _InFlight(NamedTuple):
    """A step that the engine has, between its plan and its end."""

    plan: StepPlan
    executed: Executed
    started_s: float

    @property
    def ended_s(self) -> float:
        return self.started_s + self.executed.seconds


class Simulation:
    """One replica, one run. ``run`` may be called once.

    ``online`` arrive at their own times; offline ones may be among them (a constant rate), and
    ``offline`` feeds the others. ``plan_s`` is what a decision takes, and ``plan_request_s`` what
    each request of the step adds: the engine idles for it before each step, or, ``asynchronous``,
    the decision is made while the step before runs and what arrives meanwhile waits for one more.
    With ``queued`` steps a step is planned and sent while so many run or wait before it, as vLLM
    does with one when it schedules asynchronously.

    Source of ``asynchronous``: HyGen A.1, Algorithm 2.
    """

    def __init__(  # noqa: PLR0913 - one run, all that it depends on
        self,
        *,
        scheduler: Planner,
        engine: SimEngine,
        online: tuple[RequestSpec, ...],
        offline: Feeder,
        plan_s: float = 0.0,
        plan_request_s: float = 0.0,
        asynchronous: bool = False,
        queued: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._arrivals = Arrivals(online)
        self._offline = offline
        self._plan_s = plan_s
        self._plan_request_s = plan_request_s
        self._asynchronous = asynchronous
        self._most_in_flight = 1 + queued
        self._in_flight: deque[_InFlight] = deque()
        self._stepped = False
        self._clock = VirtualClock()
        self._online_tokens = sum(
            spec.prompt_tokens + spec.output_tokens
            for spec in online
            if spec.klass is RequestClass.ONLINE
        )
        self._steps: list[StepRecord] = []
        self._online: list[RequestRecord] = []
        self._offline_unfinished = 0
        self._offline_finished = 0
        self._preemptions = 0

    def run(self, *, until_s: float) -> SimResult:
        """Simulate up to ``until_s``: a step under way then is the last."""
        self.advance(until_s)
        return self.result()

    @property
    def now_s(self) -> float:
        """Where virtual time stands."""
        return self._clock.now_s

    @property
    def online_waiting_tokens(self) -> int:
        """Prompt and output tokens of online requests that have arrived and not ended."""
        return self._online_tokens

    def arrive(self, spec: RequestSpec) -> None:
        """A request that this replica gets from a router, at the request's own time."""
        self._arrivals.add(spec)
        self._online_tokens += spec.prompt_tokens + spec.output_tokens

    def advance(self, until_s: float) -> None:
        """Simulate on, up to ``until_s``; a step under way then is finished."""
        while self._clock.now_s < until_s:
            self._take_arrivals()
            now_s = self._clock.now_s
            self._engine.poll(now_s)
            plan = self._scheduler.plan(now_s)
            if self._in_flight and (plan.preempt or plan.recall or not plan.computes):
                self._end_step()  # what it takes away may still be in flight
                continue
            if plan.computes:
                self._begin_step(plan)
                if len(self._in_flight) == self._most_in_flight:
                    self._end_step()
                self._stepped = True
                continue
            self._stepped = False
            if plan.preempt or plan.refused or plan.recall:
                executed = self._engine.start(plan)
                self._scheduler.begin(plan)
                for running in executed.refused:
                    self._end(running)
                self._count_preemptions(plan)
                if plan.preempt or plan.recall:
                    continue  # what they gave back is there at once; those who move come later
            wait_s = inf if plan.idle_s is None else now_s + max(plan.idle_s, 1e-4)
            next_s = max(self._arrivals.next_s, self._clock.now_s)
            self._clock.advance_to(min(until_s, wait_s, next_s))

    def result(self) -> SimResult:
        """What there is so far."""
        return SimResult(
            steps=tuple(self._steps),
            online=tuple(self._online),
            offline_finished=self._offline_finished,
            preemptions=self._preemptions,
            ended_s=self._clock.now_s,
            unfinished=self.unfinished(),
        )

    def unfinished(self) -> tuple[RequestRecord, ...]:
        """Online requests that have arrived and not ended, with the tokens that they have."""
        return tuple(_record_of(r) for r in self._engine.known.values() if r.request.is_online)

    def _take_arrivals(self) -> None:
        now_s = self._clock.now_s
        known_s = now_s - self._plan_s if self._asynchronous and self._stepped else now_s
        for spec in self._arrivals.due(known_s):
            request = self._engine.accept(spec, spec.arrival_s)
            self._offline_unfinished += not request.is_online
            self._scheduler.add(request)
        for spec in self._offline.take(now_s=now_s, unfinished=self._offline_unfinished):
            self._scheduler.add(self._engine.accept(spec, now_s))
            self._offline_unfinished += 1

    def _begin_step(self, plan: StepPlan) -> None:
        if not self._asynchronous:
            plan_s = self._plan_s + self._plan_request_s * len(plan.work)
            self._clock.advance_to(self._clock.now_s + plan_s)
        executed = self._engine.start(plan)
        self._scheduler.begin(plan)
        before_s = self._in_flight[-1].ended_s if self._in_flight else self._clock.now_s
        self._in_flight.append(_InFlight(plan, executed, max(before_s, self._clock.now_s)))
        for running in executed.refused:
            self._end(running)

    def _end_step(self) -> None:
        """The oldest step in flight ends."""
        plan, executed, started_s = step = self._in_flight.popleft()
        ended_s = step.ended_s
        self._clock.advance_to(max(ended_s, self._clock.now_s))
        self._record(plan, executed, started_s, ended_s)
        ended = self._engine.finish(executed, ended_s)
        outcome = StepOutcome(
            started_s=started_s,
            ended_s=ended_s,
            tokens=dict.fromkeys(executed.yields + executed.on_cpu, 1),
            finished=frozenset([running.request.id for running in ended]),
        )
        self._scheduler.commit(plan, outcome)
        for running in ended:
            self._end(running)

    def _record(self, plan: StepPlan, executed: Executed, started_s: float, ended_s: float) -> None:
        online, computed, served, decoded = executed.tokens
        on_cpu = len(executed.on_cpu)
        self._count_preemptions(plan)
        self._steps.append(
            StepRecord(
                started_s,
                ended_s,
                plan.predicted_s,
                online,
                computed + on_cpu,
                served + on_cpu,
                executed.online_s,
                plan.limit_reason,
                decoded + on_cpu,
                on_cpu,
            )
        )

    def _count_preemptions(self, plan: StepPlan) -> None:
        """Requests that lose what they have computed."""
        self._preemptions += len([gone for gone in plan.preempt if not gone.to_cpu])

    def _end(self, running: Running) -> None:
        request = running.request
        if not request.is_online:
            self._offline_unfinished -= 1
            self._offline_finished += 1
            return
        self._online_tokens -= request.prompt_tokens + running.output_tokens
        record = _record_of(running)
        self._online.append(record)
        self._offline.online_ended(record)


def _record_of(running: Running) -> RequestRecord:
    request = running.request
    return RequestRecord(
        id=request.id,
        arrival_s=request.arrival_s,
        prompt_tokens=request.prompt_tokens,
        hit_tokens=request.hit_tokens,
        tokens_s=tuple(running.tokens_s),
        preemptions=request.preemptions,
    )
