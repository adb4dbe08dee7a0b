"""What vLLM can take right now, whatever the plan: it may be paused, or output still in flight."""

from typing import Any

from vllm.v1.core.sched.interface import PauseState

from weir_agent.vllm_bridge.base import VllmScheduler
from weir_engine.sched.plan import Work


class Readiness:
    """Reads vLLM's state; ``asynchronous`` when a step is scheduled before the last one's output.

    ``stopped``: no step may run. ``admitting``: new requests may start.
    """

    def __init__(self, vllm: VllmScheduler, *, asynchronous: bool) -> None:
        self._vllm = vllm
        self._asynchronous = asynchronous

    @property
    def stopped(self) -> bool:
        """True while everything is paused."""
        return bool(self._vllm._pause_state == PauseState.PAUSED_ALL)  # noqa: SLF001 - vLLM's own state

    @property
    def admitting(self) -> bool:
        """True while nothing is paused."""
        return bool(self._vllm._pause_state == PauseState.UNPAUSED)  # noqa: SLF001 - vLLM's own state

    @property
    def takes_all(self) -> bool:
        """True while vLLM can take whatever is planned."""
        return not self._asynchronous and self.admitting

    def takes(self, work: Work) -> bool:
        """False for work that vLLM cannot take now."""
        if work.admitted and not self.admitting:
            return False
        if not self._asynchronous:
            return True
        request = self._vllm.requests[work.request_id]
        return not (_is_stale(request) if work.admitted else self._is_done_in_flight(request))

    def _is_done_in_flight(self, request: Any) -> bool:
        """True when the last token that the request may have is already being computed."""
        pending = request.num_output_placeholders
        end = min(request.num_prompt_tokens + request.max_tokens, self._vllm.max_model_len)
        return bool(pending) and request.num_computed_tokens + 2 - pending >= end


def _is_stale(request: Any) -> bool:
    """True while output of a preempted request is in flight: it may not come back before."""
    return bool(request.num_stale_output_tokens and not request.drop_stale_output)
