"""Baselines that never cut a prompt: first come first served, and round robin of the classes."""

from collections.abc import Callable

from typing_extensions import override

from weir_engine.config import EngineShape
from weir_engine.kv.manager import KvManager
from weir_engine.request import Request
from weir_engine.sched.plan import StepPlan
from weir_engine.sim.baselines import StockDraft, StockScheduler


class WholePromptFcfs(StockScheduler):
    """First come, first served, whoever asks; prompts go whole, in steps of their own or not.

    ``mixed`` False: as long as prompts fit, a step has prompts alone and decodes wait. A request
    that finds no block makes the latest arrival give way, by recomputation.

    Source: the baseline vLLM of BROS §7.1, without chunked prefill.
    """

    def __init__(self, shape: EngineShape, kv: KvManager, *, mixed: bool) -> None:
        super().__init__(shape, kv, step_tokens=shape.max_batched_tokens, by_class=False)
        self._mixed = mixed

    @override
    def _fill(self, draft: StockDraft) -> None:
        if self._mixed:
            super()._fill(draft)
            return
        self._admit_some(draft, lambda request: True)  # noqa: ARG005
        if not draft.taken:
            self._run_some(draft, lambda request: True)  # noqa: ARG005

    @override
    def _admit(self, draft: StockDraft, request: Request) -> bool:
        fits = request.known_tokens <= draft.tokens_left
        return fits and super()._admit(draft, request)

    def _run_some(self, draft: StockDraft, chosen: Callable[[Request], bool]) -> None:
        for request in list(self._running.values()):
            if chosen(request) and request.id not in draft.preempted:
                self._continue(draft, request)

    def _admit_some(self, draft: StockDraft, chosen: Callable[[Request], bool]) -> None:
        for request in self._waiting:
            if chosen(request) and not self._admit(draft, request):
                return


class RoundRobin(WholePromptFcfs):
    """The two classes take turns at every step, each first come, first served.

    A class without work leaves its turn to the other. Prompts and decodes of a class share a step.

    Source: BROS §2.2, iteration-level round robin, and §7.1, the baseline RR without bidirectional
    blocks.
    """

    def __init__(self, shape: EngineShape, kv: KvManager) -> None:
        super().__init__(shape, kv, mixed=True)
        self._online_turn = True

    @override
    def begin(self, plan: StepPlan) -> None:
        super().begin(plan)
        had_turn = {self._requests[work.request_id].is_online for work in plan.work}
        self._online_turn = not had_turn.pop() if had_turn else self._online_turn

    @override
    def _fill(self, draft: StockDraft) -> None:
        for online in (self._online_turn, not self._online_turn):
            self._fill_class(draft, online=online)
            if draft.taken or draft.preempted:
                return

    def _fill_class(self, draft: StockDraft, *, online: bool) -> None:
        def chosen(request: Request) -> bool:
            return request.is_online is online

        self._run_some(draft, chosen)
        if not draft.preempted:
            self._admit_some(draft, chosen)
