"""Requests on their way through the scheduler's state: admitted, computed, preempted, ended.

Each function records one event that has happened; none decides anything.
"""

from collections.abc import Iterable

from weir_engine.request import Request, RequestState
from weir_engine.sched.plan import Work
from weir_engine.sched.state import SchedulerState


def advance(state: SchedulerState, works: Iterable[Work]) -> None:
    """A step's work was sent to the engine; what it completes is in flight until committed.

    Raises:
        UnknownRequestError: a request was never added, or has ended.
    """
    requests, leading = state.requests, state.inflight.leading
    offline_computed = offline_served = 0
    for request_id, tokens, admitted, hit_tokens, _ in works:
        request = requests.get(request_id) or state.get(request_id)
        if admitted:
            _admitted(state, request, hit_tokens)
        computed = request.computed_tokens = request.computed_tokens + tokens
        if request_id in leading:
            state.inflight.advance(request)
        if not request.is_online:
            offline_computed += tokens
            # What is computed again after a preemption was served before.
            if computed > request.served_tokens:
                offline_served += computed - request.served_tokens
                request.served_tokens = computed
        if computed == request.prompt_tokens + request.output_tokens:
            request.output_tokens += 1  # in flight until committed
    state.counters.offline_computed_tokens += offline_computed
    state.counters.offline_served_tokens += offline_served


def _admitted(state: SchedulerState, request: Request, hit_tokens: int) -> None:
    counters = state.counters
    first = request.preemptions == 0
    if first:
        request.hit_tokens = hit_tokens
    admit(state, request, hit_tokens)
    if first and request.is_online:
        counters.online_hit_tokens += hit_tokens
        counters.online_prompt_tokens += request.prompt_tokens
    elif first:
        counters.offline_hit_tokens += hit_tokens
        counters.offline_prompt_tokens += request.prompt_tokens


def admit(state: SchedulerState, request: Request, computed_tokens: int) -> None:
    """A waiting request runs, with ``computed_tokens`` found in the cache."""
    if request.is_online:
        state.waiting_online.pop(request.id, None)
    elif state.resuming.pop(request.id, None) is None:
        state.pool.taken(request.id)
    request.move(RequestState.RUNNING)
    state.start(request, computed_tokens)


def preempt(state: SchedulerState, request: Request) -> None:
    """A running request gave its blocks back; the tokens that it produced stay its own."""
    request.move(RequestState.PREEMPTED)
    request.preemptions += 1
    request.computed_tokens = 0
    state.counters.preemptions += 1
    state.stop(request)
    if request.is_online:
        state.waiting_online[request.id] = request
    else:
        state.resuming[request.id] = request


def count_on_cpu(state: SchedulerState, request: Request, tokens: int) -> None:
    """Tokens of the CPU lane: known and computed grow by as many."""
    request.output_tokens += tokens
    request.computed_tokens += tokens
    request.served_tokens += tokens
    state.counters.offline_computed_tokens += tokens
    state.counters.offline_served_tokens += tokens


def count_finished(state: SchedulerState, request: Request) -> None:
    """A request has produced its last token."""
    if request.is_online:
        state.counters.finished_online += 1
    else:
        state.counters.finished_offline += 1


def end(state: SchedulerState, request: Request) -> None:
    """A request leaves, wherever it stands."""
    if state.on_cpu.pop(request.id, None) is not None:
        pass  # it holds nothing here
    elif request.state is RequestState.RUNNING:
        state.stop(request)
    elif request.is_online:
        state.waiting_online.pop(request.id, None)
    elif state.resuming.pop(request.id, None) is None:
        state.pool.remove(request.id)
    request.move(RequestState.FINISHED)
    del state.requests[request.id]
