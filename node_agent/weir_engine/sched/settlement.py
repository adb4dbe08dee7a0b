"""After a step: what it took, who paid for it, and what there is to tell accounts and model."""

from collections.abc import Iterator

from weir_engine.latency.features import EMPTY_SHAPE
from weir_engine.latency.models import LatencyModel
from weir_engine.request import Request
from weir_engine.sched.account import StepTimes
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.pace import Pace
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.step_kind import StepKind
from weir_engine.sched.transitions import count_on_cpu

# A step that should have ended ends within so long.
_SOON_S = 1e-4
# Of what offline work adds to a step no more than so many times what was predicted is learnt from.
_MOST_OVERRUN = 3.0


class Settlement:
    """Charges each step's time to offline and online work, and has it booked.

    ``pace`` is the tightest objective on TPOT (None without any). All times are seconds.
    """

    def __init__(
        self,
        state: SchedulerState,
        *,
        model: LatencyModel,
        books: Bookkeeping,
        pace: Pace | None,
    ) -> None:
        self._state = state
        self._model = model
        self._books = books
        self._pace = pace
        self._last_start_s = 0.0
        self._last_end_s = 0.0
        self._last_offline_s = 0.0
        self._left_out_at_s = 0.0  # when a step of prompts started, and what of it was offline
        self._left_out_s = 0.0
        self._in_flight = 0
        self._planned_end_s = 0.0

    def busy_s(self, now_s: float) -> float:
        """How long the engine still computes, by prediction, before a step planned now can start.

        An asynchronous engine plans a step while it computes the one before. One that takes longer
        than predicted is still there: only an engine that has nothing to compute is not busy.
        """
        return max(self._planned_end_s - now_s, _SOON_S) if self._in_flight > 0 else 0.0

    def began(self, plan: StepPlan) -> None:
        """The plan was sent to the engine; one that computes nothing is not heard of again."""
        if plan.computes:
            self._planned_end_s = plan.now_s + self.busy_s(plan.now_s) + plan.predicted_s
            self._in_flight += 1

    def arrived(self, request: Request) -> None:
        """What offline work has cost an online request before it came.

        The rest of a step with offline work in it, where it came amid one; and where prompts are
        ahead of it, the longest that one of those was delayed: it starts as much later.
        """
        if self._last_start_s <= request.arrival_s < self._last_end_s:
            waited_s = self._last_end_s - request.arrival_s
            request.offline_delay_s = min(waited_s, self._last_offline_s)
        for ahead in self._ahead(request):
            request.offline_delay_s = max(request.offline_delay_s, ahead.offline_delay_s)

    def _ahead(self, request: Request) -> Iterator[Request]:
        """Prompts of which one was delayed longest: who came later has what those before had.

        Not all that wait: each of a burst would look at all before it.
        """
        for other in self._state.running_online.values():
            if other.first_token_s is None:
                yield other
        for other in reversed(self._state.waiting_online.values()):
            if other is request or other.first_token_s is not None:
                continue
            yield other
            if not other.preemptions:
                return

    def step(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """The step's time: to the model, to online requests that waited, to the accounts."""
        counters = self._state.counters
        self._in_flight -= plan.computes
        same = plan.shape is plan.online_shape or plan.shape == plan.online_shape
        offline = not same or bool(plan.piggyback)
        duration_s = outcome.ended_s - outcome.started_s
        online_s = self._online_s(plan) if offline else 0.0
        base_s = _base_s(plan, duration_s, online_s) if offline else duration_s
        offline_s = duration_s - base_s if offline else 0.0
        queued = outcome.started_s <= self._last_end_s and plan.now_s < self._last_end_s
        behind_s = self._last_end_s - self._last_start_s if queued else 0.0
        self._last_start_s, self._last_end_s = outcome.started_s, outcome.ended_s
        self._last_offline_s = offline_s
        counters.steps += 1
        counters.offline_steps += offline
        if offline:
            self._charge_waiting(offline_s)
            self._learn_surcharge(plan, outcome, online_s)
        if plan.kind is StepKind.PREFILL:
            self._left_out_at_s, self._left_out_s = outcome.started_s, offline_s
        self._books.step(
            plan.shape,
            duration_s - plan.piggyback_s if outcome.timed else None,
            StepTimes(
                ended_s=outcome.ended_s,
                duration_s=duration_s,
                base_s=base_s,
                offline=offline,
                behind_s=behind_s,
            ),
            later=self._only_decodes(),
        )

    def _learn_surcharge(self, plan: StepPlan, outcome: StepOutcome, online_s: float) -> None:
        online = plan.online_shape
        decodes_alone = online.decode_requests > 0 and online.prefill_requests == 0
        if not (decodes_alone and outcome.timed) or plan.piggyback:
            return
        most_s = _MOST_OVERRUN * max(plan.predicted_s - online_s, 0.0)  # more is a pause
        added_s = min(outcome.ended_s - outcome.started_s - online_s, most_s)
        decodes = plan.shape.decode_requests - online.decode_requests
        self._books.surcharge.observe(plan.shape.prefill_tokens, decodes, added_s)

    def tokens(self, outcome: StepOutcome) -> None:
        """The step's tokens: to their requests, and their latencies to the accounts."""
        requests, on_cpu, ended_s = self._state.requests, self._state.on_cpu, outcome.ended_s
        online_tokens = 0
        for request_id, tokens in outcome.tokens.items():
            request = requests.get(request_id)
            if request is None or not tokens:
                continue
            if on_cpu and request_id in on_cpu:
                count_on_cpu(self._state, request, tokens)
            request.delivered_tokens += tokens
            if request.is_online:
                online_tokens += tokens
                self._online_token(request, ended_s)
            if request.first_token_s is None:
                request.first_token_s = ended_s
            request.last_token_s = ended_s
        self._state.counters.online_tokens += online_tokens

    def _online_token(self, request: Request, now_s: float) -> None:
        late_s = None if self._pace is None else self._pace.late_s(request, now_s)
        if request.first_token_s is None:
            ttft_s = now_s - request.arrival_s
            self._books.first_token(ttft_s, request.offline_delay_s, late_s)
        elif request.last_token_s is not None:
            delay_s = self._last_offline_s
            if request.last_token_s <= self._left_out_at_s:
                delay_s += self._left_out_s
            self._books.token(now_s - request.last_token_s, delay_s, late_s)

    def _only_decodes(self) -> bool:
        """True while online requests that have their first token are all that may have a step."""
        state = self._state
        if not state.only_online_runs and (state.waiting_online or not self._books.is_quiet):
            return False
        for request in self._state.running_online.values():
            if request.first_token_s is None:
                return False
        return True

    def _online_s(self, plan: StepPlan) -> float:
        """What the step's online work alone was predicted to take; 0 without any."""
        return 0.0 if plan.online_shape == EMPTY_SHAPE else self._model.predict(plan.online_shape)

    def _charge_waiting(self, offline_s: float) -> None:
        for request in self._prompts():
            request.offline_delay_s += offline_s

    def _prompts(self) -> Iterator[Request]:
        for request in self._state.running_online.values():
            if request.first_token_s is None:
                yield request
        yield from self._state.waiting_online.values()


def _base_s(plan: StepPlan, duration_s: float, online_s: float) -> float:
    """What a step of this duration would have taken without its offline work."""
    if plan.predicted_s <= 0:
        return 0.0
    return min(1.0, online_s / plan.predicted_s) * duration_s
