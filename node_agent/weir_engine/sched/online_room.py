"""How many KV blocks offline admissions leave free, so that online requests can grow into them."""

from math import sqrt
from typing import Final

from weir_engine.sched.plan import StepPlan
from weir_engine.sched.state import SchedulerState

# This share of the tokens that offline work computes may be computed for the second time.
_AGAIN_SHARE: Final = 0.08
# Room is kept for no more than so many standard deviations of what online requests hold.
_MOST_DEVIATIONS: Final = 2.0
# The same where online takes single blocks of a request, which then waits with all of the others.
_BOTH_ENDS_DEVIATIONS: Final = 0.2
# So long after the last offline request, no room is left that would keep all of them out.
_KEPT_S: Final = 10.0
_OFFLINE_PROMPT: Final = frozenset({"offline-admit", "offline-prefill"})


class OnlineRoom:
    """Free blocks that no offline request is admitted into.

    An online request that lacks blocks takes them from an offline one, which is computed again:
    that takes time, for which online requests hold their blocks longer. So there is more room while
    more than a twelfth of the offline tokens are computed again, and less otherwise: between none
    and two standard deviations of what online requests hold, their number taken as Poisson. With
    a CPU lane it is one standard deviation: prompts that give way start again, while decodes that
    give way, or wait for the room, go on at the lane. With ``both_ends`` of the blocks in use
    nothing is computed again and it is always a fifth of a deviation.

    While no offline request runs though some wait, nothing is learnt and the room may be what keeps
    them out: it fades within ten seconds, until one is admitted.

    Source: Weir.
    """

    def __init__(self, state: SchedulerState, *, both_ends: bool = False) -> None:
        self._state = state
        self._both_ends = both_ends
        self._blocks = 0.0
        self._idle_since_s: float | None = None

    def spare_blocks(self, online_blocks: int, now_s: float) -> float:
        """Blocks to leave free where online requests hold so many."""
        return self._kept(online_blocks) * self._left(now_s)

    def _kept(self, online_blocks: int) -> float:
        deviation = self._deviation(online_blocks)
        if self._state.lane is not None:
            return deviation
        if self._both_ends:
            return _BOTH_ENDS_DEVIATIONS * deviation
        return min(self._blocks, _MOST_DEVIATIONS * deviation)

    def on_begin(self, plan: StepPlan) -> None:
        """Learns from a plan that is about to take effect."""
        state = self._state
        offline_tokens = plan.shape.tokens - plan.online_shape.tokens
        if not offline_tokens:
            self._watch(plan.now_s)
            return
        self._idle_since_s = None
        kv = state.kv
        most = _MOST_DEVIATIONS * self._deviation(
            kv.total_blocks - kv.free_blocks - kv.offline_only_blocks
        )
        again_tokens = 0
        if plan.shape.prefill_requests > plan.online_shape.prefill_requests:
            again_tokens = self._again_tokens(plan)
        change = (again_tokens - _AGAIN_SHARE * offline_tokens) / state.shape.block_size_tokens
        self._blocks = min(max(self._blocks + change, 0.0), most)

    def _watch(self, now_s: float) -> None:
        """Notes since when offline requests wait while none of them runs."""
        state = self._state
        runs = bool(state.running_offline or state.on_cpu)
        if runs or not state.offline_waiting:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s

    def _left(self, now_s: float) -> float:
        """The part of the room that is still kept."""
        if self._idle_since_s is None:
            return 1.0
        return max(0.0, 1 - (now_s - self._idle_since_s) / _KEPT_S)

    def _deviation(self, online_blocks: int) -> float:
        requests = len(self._state.running_online)
        return online_blocks / sqrt(requests) if requests else 0.0

    def _again_tokens(self, plan: StepPlan) -> int:
        """Offline tokens of the plan that were computed before and lost since."""
        again = 0
        for request_id, tokens, admitted, hit_tokens, reason in plan.work:
            if reason in _OFFLINE_PROMPT:
                request = self._state.get(request_id)
                start = hit_tokens if admitted else request.computed_tokens
                again += max(0, min(tokens, request.served_tokens - start))
        return again
