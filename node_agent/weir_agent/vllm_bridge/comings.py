"""Requests come and go between the steps of a vLLM scheduler: who must hear of it."""

from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.request import RequestStatus

from weir_agent.vllm_bridge.base import VllmScheduler
from weir_agent.vllm_bridge.intake import Intake
from weir_agent.vllm_bridge.parking import Parking
from weir_agent.vllm_bridge.planner import Planner
from weir_agent.vllm_bridge.pool import PoolParts
from weir_agent.vllm_bridge.wanted import WantedPrefixes
from weir_engine.ids import RequestId
from weir_engine.sched.plan import StepPlan


class Comings:
    """Tells planner and KV accounts of requests that are taken in, preempted, ended or forgotten.

    ``preempted`` are those whose blocks vLLM took since it was cleared, by plan or not.
    """

    def __init__(
        self,
        vllm: VllmScheduler,
        *,
        planner: Planner,
        intake: Intake,
        pool: PoolParts,
        parking: Parking,
        clock: Callable[[], float],
    ) -> None:
        self._vllm = vllm
        self._planner = planner
        self._intake = intake
        self._ledger = pool.ledger
        self._kv = pool.kv
        self._parking = parking
        self._clock = clock
        self._wanted = WantedPrefixes(
            pool.kv, pool.ledger.waiting, block_size_tokens=vllm.block_size
        )
        self.preempted: set[str] = set()

    def before_add(self, request: Any) -> None:
        """A request is about to be taken in: note its class."""
        self._intake.register(request)

    def after_add(self, request: Any) -> None:
        """It was taken in; once it is ready, the planner may count on it."""
        if self._intake.is_ready(request):
            self._arrive(request)
        self._parking.unpark()

    def unblock(self) -> None:
        """Those whose grammar is compiled by now are ready."""
        for request in self._intake.unblock():
            self._arrive(request)

    def began(self, plan: StepPlan) -> None:
        """A plan took effect: prefixes of whom it admitted are waited for no more."""
        for preemption in plan.preempt:
            if (known := self._intake.known.get(preemption.request_id)) is not None:
                self._wanted.expect(known)
        for work in plan.work:
            if work.admitted:
                self._wanted.forget(work.request_id)
                if (known := self._intake.known.get(work.request_id)) is not None:
                    self._kv.tails.leads(known, work.hit_tokens + work.tokens)

    def after_finish(self, ended: Iterable[Any]) -> None:
        """Requests ended from outside, wherever they stood."""
        for request in ended:
            if not self._intake.is_waiting_for_grammar(request.request_id):
                self._planner.abort(request.request_id)
            self.forget(request.request_id)
        self._parking.unpark()

    def after_free(self, request: Any) -> None:
        """A request's blocks were given back: it was preempted or has ended."""
        known = self._intake.known.get(request.request_id)
        hashes = () if known is None else known.block_hashes
        self._ledger.released(request.request_id, hashes, self._clock())
        self._kv.tails.stops(request.request_id)
        if not request.is_finished():
            self.preempted.add(request.request_id)

    def after_cache_reset(self, *, done: bool) -> None:
        """The prefix cache was dropped, perhaps with every request preempted for it."""
        if done:
            self._ledger.cache_was_reset()
            self._kv.tails.clear()
        for request_id in self.preempted:
            request = self._vllm.requests.get(request_id)  # None: it has ended since
            if request is not None and request.status == RequestStatus.PREEMPTED:
                self._planner.preempted(
                    RequestId(request_id), output_tokens=request.num_output_tokens
                )
        self.preempted.clear()
        self._parking.unpark()

    def forget(self, request_id: str) -> None:
        """A request is over, and the planner knows it."""
        self._wanted.forget(RequestId(request_id))
        self._kv.ended(RequestId(request_id))
        self._intake.forget(request_id)

    def _arrive(self, request: Any) -> None:
        known = self._intake.known[request.request_id]
        if request.skip_reading_prefix_cache:
            self._kv.ignore_cache(known.id)
        self._planner.add(known)
        self._wanted.expect(known)
