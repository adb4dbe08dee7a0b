"""The online order that is fair among tenants."""

from collections import deque
from collections.abc import Iterable, Mapping

from typing_extensions import override

from weir_engine.ids import RequestId
from weir_engine.pool.fairness import VirtualTokenCounter
from weir_engine.request import Request, RequestState
from weir_engine.sched.listener import StepListener
from weir_engine.sched.plan import StepPlan


class VtcOrder(StepListener):
    """Virtual token counter: the waiting request of the tenant that was served least goes first.

    A tenant is charged its prompt when a request is admitted, and each output token as it is
    planned. Requests that run already keep their order of arrival: they were charged. Within a
    ranking each request counts as admitted for the next, so tenants take turns.

    Source: HyGen §4.1 names it; Sheng et al. (OSDI 2024), Algorithm 2. A request that resumes after
    a preemption is not charged again.
    """

    def __init__(self) -> None:
        self._counter = VirtualTokenCounter(quantum_tokens=0.0)
        self._waiting: dict[str, set[RequestId]] = {}

    def order(self, requests: Iterable[Request], now_s: float) -> list[Request]:  # noqa: ARG002
        """Running ones by arrival, then waiting ones in turns of their tenants."""
        ordered = sorted(requests, key=lambda request: (request.arrival_s, request.id))
        running = [r for r in ordered if r.state is RequestState.RUNNING]
        queues: dict[str, deque[Request]] = {}
        for request in ordered:
            if request.state is not RequestState.RUNNING:
                queues.setdefault(request.tenant, deque()).append(request)
        served = {tenant: self._counter.served_tokens(tenant) for tenant in queues}
        waiting = []
        while queues:
            tenant = min(queues, key=lambda name: (served[name], name))
            request = queues[tenant].popleft()
            waiting.append(request)
            served[tenant] += request.prompt_tokens
            if not queues[tenant]:
                del queues[tenant]
        return running + waiting

    @override
    def on_add(self, request: Request) -> None:
        """A tenant that had nothing waiting starts at the level of the least served one."""
        if not request.is_online:
            return
        queue = self._waiting.setdefault(request.tenant, set())
        if not queue:
            self._counter.join(request.tenant)
        queue.add(request.id)

    @override
    def on_begin(self, plan: StepPlan, requests: Mapping[RequestId, Request]) -> None:
        """Charges prompts of admissions and output tokens of decodes."""
        for work in plan.work:
            request = requests[work.request_id]
            if not request.is_online:
                continue
            first = work.admitted and request.preemptions == 0
            self._counter.charge(
                request.tenant,
                prompt_tokens=request.prompt_tokens if first else 0,
                output_tokens=int(request.computed_tokens + 1 == request.known_tokens),
            )
            if work.admitted:
                self._leave(request)

    @override
    def on_end(self, request: Request) -> None:
        """One that ended while it waited waits no more."""
        if request.is_online:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        queue = self._waiting.get(request.tenant)
        if queue is None or request.id not in queue:
            return
        queue.discard(request.id)
        if not queue:
            del self._waiting[request.tenant]
            self._counter.leave(request.tenant)
