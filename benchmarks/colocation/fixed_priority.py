"""vLLM's priority policy with the defect repaired that stock 0.32 has: offline work gives way.

Stock keeps a high-priority arrival waiting while low-priority requests hold the KV blocks or the
sequence slots (vllm#40004), or while an offline prefill takes every step's tokens. Here requests
of the lowest class are preempted until the head of the queue fits. The rest stays vLLM's own.
"""

from __future__ import annotations

import time

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class FixedPriority(Scheduler):  # type: ignore[misc]  # vLLM is not analysed
    """Preempts running requests of a lower class before an online arrival has to wait.

    Online requests also come first within a step: running ones are kept ordered by priority, so
    that their decodes and chunks take from the token limit before offline work does.
    """

    def schedule(self, *args: object, **kwargs: object) -> SchedulerOutput:
        """One step: makes room for the waiting head, then vLLM's own schedule."""
        self.running.sort(key=lambda request: request.priority)
        self._make_room()
        return super().schedule(*args, **kwargs)

    def _make_room(self) -> None:
        if not self.waiting:
            return
        head = self.waiting.peek_request()
        while self.running and self._lacks_room(head):
            victim = max(self.running, key=lambda request: (request.priority, request.arrival_time))
            if victim.priority <= head.priority:
                return
            self._preempt(victim)
        for request in self.running[::-1]:
            prefilling = request.num_tokens - request.num_computed_tokens > 1
            if prefilling and request.priority > head.priority:
                self._preempt(request)  # its computed blocks stay in the prefix cache

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._preempt_request(request, time.monotonic())

    def _lacks_room(self, head: Request) -> bool:
        if len(self.running) >= self.max_num_running_reqs:
            return True
        tokens = head.num_tokens - head.num_computed_tokens
        needed_blocks = -(-tokens // self.block_size)
        return bool(needed_blocks > self.kv_cache_manager.block_pool.get_num_free_blocks())
