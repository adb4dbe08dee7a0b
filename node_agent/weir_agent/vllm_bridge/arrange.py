"""Arranges vLLM's queues before a step so that it can do nothing but the plan.

Preempts, shows the admissions, keeps their prefix hits, holds requests back. The plan is the
planner's; only an admission whose blocks turn out to be missing, those of its prefix hit or those
to fill, is put off.
"""

import time
from collections.abc import Mapping
from typing import Any

from weir_agent.vllm_bridge.base import VllmScheduler
from weir_agent.vllm_bridge.kv import VllmKv
from weir_agent.vllm_bridge.queue import Block
from weir_agent.vllm_bridge.waiting import PlannedQueue
from weir_engine.errors import InvariantError
from weir_engine.ids import RequestId
from weir_engine.request import Request
from weir_engine.sched.plan import StepPlan, Work


class Arrangement:
    """What one step may do: ``tokens`` by request, ``hits`` (in tokens) by admitted request.

    ``put_off`` counts admissions that were planned without the blocks for them.
    """

    def __init__(self, vllm: VllmScheduler, kv: VllmKv, known: Mapping[str, Request]) -> None:
        self._vllm = vllm
        self._kv = kv
        self._known = known
        self._pool = vllm.kv_cache_manager.block_pool
        self._block_size = vllm.block_size
        self._waiting = PlannedQueue()
        vllm.waiting = self._waiting
        self._pins: list[Block] = []
        self._copied: dict[str, Block] = {}
        self.tokens: dict[str, int] = {}
        self.hits: dict[str, int] = {}
        self.put_off = 0

    def clear(self) -> None:
        """The next step does nothing."""
        self.tokens = {}
        self.hits = {}
        self._copied = {}

    def apply(self, plan: StepPlan) -> StepPlan:
        """Make vLLM ready for the plan; answers with the plan that it can carry out.

        Raises:
            InvariantError: a request is to be preempted and admitted at once.
        """
        vllm = self._vllm
        for preemption in plan.preempt:
            request = vllm.requests[preemption.request_id]
            vllm.running.remove(request)
            vllm._preempt_request(request, time.monotonic())  # noqa: SLF001 - the only way
        for request_id in plan.held:
            request = vllm.requests[request_id]
            skip_until = vllm.current_step + 2  # vLLM counts the step that begins now first
            request.next_decode_eligible_step = max(request.next_decode_eligible_step, skip_until)
        tokens: dict[str, int] = {}
        admits = False
        for work in plan.work:
            tokens[work.request_id] = work.tokens
            admits |= work.admitted
        if admits:
            plan = self._admit(plan)
            tokens = {work.request_id: work.tokens for work in plan.work}
        self.tokens = tokens
        return plan

    def release(self) -> None:
        """The step was scheduled: vLLM holds now what it needs."""
        if self._waiting:
            self._waiting.hide()
        if self._pins:
            self._pool.free_blocks(reversed(self._pins))
            self._pins = []

    def planned_hit(
        self, request: Any, found: tuple[Any, int, int, bool]
    ) -> tuple[Any, int, int, bool]:
        """The prefix hit that the plan counts on, out of the one that vLLM found.

        A longer one would be of blocks that a sibling computes in this very step. One that is
        planned to end inside a block has that block last: vLLM copies it.
        """
        planned = self.hits.get(request.request_id)
        blocks, tokens, boundary, diverged = found
        if planned is None or tokens == planned:
            return found
        manager = self._vllm.kv_cache_manager
        whole = planned - planned % self._block_size
        if tokens > whole:
            blocks = manager.truncate_computed_blocks(blocks, whole)
        copied = self._copied.get(request.request_id)
        if tokens < whole or (whole < planned and copied is None):
            return found
        if copied is not None:
            blocks = manager.create_kv_cache_blocks(([*blocks.blocks[0], copied],))
        return blocks, planned, boundary, diverged

    def _admit(self, plan: StepPlan) -> StepPlan:
        vllm = self._vllm
        dropped = {preemption.request_id for preemption in plan.preempt}
        room = self._kv.free_blocks - sum(
            self._growth(work) for work in plan.work if not work.admitted
        )
        shown, put_off = [], set()
        for work in plan.work:
            if not work.admitted:
                continue
            if work.request_id in dropped:
                raise InvariantError(
                    f"step {plan.step} preempts and admits request {work.request_id}"
                )
            hit = self._kv.hit_blocks(self._known[work.request_id], work.hit_tokens)
            need = [block.ref_cnt for block in hit].count(0)
            need += self._blocks(work.hit_tokens + work.tokens)
            need -= work.hit_tokens // self._block_size
            gone = len(hit) < self._blocks(work.hit_tokens)  # another block must not be copied
            if gone or need > room:
                put_off.add(work.request_id)
                continue
            room -= need
            if hit:  # the step's own allocations must not evict it
                self._pool.touch(hit)
                self._pins.extend(hit)
            self.hits[work.request_id] = work.hit_tokens
            if work.hit_tokens % self._block_size:
                self._copied[work.request_id] = hit[-1]
            shown.append(vllm.requests[work.request_id])
        self._waiting.show(shown)
        if not put_off:
            return plan
        self.put_off += len(put_off)
        return plan._replace(work=tuple(w for w in plan.work if w.request_id not in put_off))

    def _growth(self, work: Work) -> int:
        request_id: RequestId = work.request_id
        computed = self._vllm.requests[request_id].num_computed_tokens
        return max(0, self._blocks(computed + work.tokens) - self._kv.held_blocks(request_id))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)
