"""The smallest engine that obeys plans exactly: for tests of the scheduler only."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weir_engine.config import EngineShape, Policy, Slo
from weir_engine.ids import RequestClass, RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.kv.view import PrefixHit
from weir_engine.latency.models import FittedModel, LatencyModel, create
from weir_engine.latency.swap import SwapModel
from weir_engine.presets import SEATS, build_scheduler
from weir_engine.request import Request
from weir_engine.sched.order import OnlineOrder
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.selection import OfflineOrder

BLOCK = 4
OPEN_POLICY = Policy(offline_kv_blocks=10_000, offline_seq_slots=10_000)
# One fixed second share a step and one a token: predictions come true to the digit.
STEP_S, TOKEN_S = 0.010, 0.001


def exact_model(
    decode_s: float = TOKEN_S, *, residuals: Sequence[float] = (1.0,), mixed_s: float = 0.0
) -> FittedModel:
    """``residuals``: measured over predicted seconds, of past steps of every size.

    ``mixed_s``: of each token of the contexts of decodes beside a prompt.
    """
    measured = list(residuals) * (256 // len(residuals))
    return create(
        "attention",
        {
            "model": "attention",
            "coefficients": dict.fromkeys(create("attention").features_by_name, 0.0)
            | _exact_coefficients(decode_s)
            | {"mixed_context": mixed_s},
            "residuals": {str(size): measured for size in range(33)},
        },
    )


def _exact_coefficients(decode_s: float) -> dict[str, float]:
    names = create("attention").features_by_name
    fixed, prefill = names[0], next(n for n in names if "prefill_tokens" in n)
    decode = next(n for n in names if "decode_requests" in n)
    return {fixed: STEP_S, prefill: TOKEN_S, decode: decode_s}


def request(  # noqa: PLR0913 - a builder for tests
    name: str,
    *,
    online: bool,
    prompt: int = 8,
    output: int = 4,
    at: float = 0.0,
    prefix: str | None = None,
    shared_blocks: int = 1,
    solo: bool = False,
) -> Request:
    """A request whose first ``shared_blocks`` blocks are those of ``prefix``."""
    blocks = (prompt + output) // BLOCK
    hashes = [
        hash((prefix, i)) if prefix is not None and i < shared_blocks else hash((name, i))
        for i in range(blocks)
    ]
    return Request(
        id=RequestId(name),
        klass=RequestClass.ONLINE if online else RequestClass.OFFLINE,
        arrival_s=at,
        prompt_tokens=prompt,
        max_output_tokens=output,
        block_hashes=list(hashes),
        solo=solo,
    )


@dataclass
class MiniEngine:
    """Scheduler, blocks and a clock that moves by what a step costs."""

    slos: tuple[Slo, ...] = ()
    blocks: int = 64
    max_seqs: int = 16
    max_batched_tokens: int = 64
    policy: Policy = OPEN_POLICY
    pool: OfflineOrder | None = None
    order: OnlineOrder | None = None
    preset: str = "weir"
    manager: type[KvManager] | None = None
    prefix_cache: bool = True
    slot_s: float = 0.0
    static_budget_s: float | None = None
    tpot_from_arrival: bool = False
    decode_s: float = TOKEN_S
    mixed_s: float = 0.0
    model: LatencyModel | None = None
    now_s: float = 0.0
    ended: dict[str, int] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kv = (self.manager or SEATS[self.preset].manager)(
            total_blocks=self.blocks,
            block_size_tokens=BLOCK,
            prefix_cache=self.prefix_cache,
            eviction=SEATS[self.preset].eviction,
        )
        self.scheduler = build_scheduler(
            self.preset,
            shape=EngineShape(
                block_size_tokens=BLOCK,
                total_blocks=self.blocks,
                max_batched_tokens=self.max_batched_tokens,
                max_seqs=self.max_seqs,
                max_model_len_tokens=256,
            ),
            slos=self.slos,
            kv=self.kv,
            model=self.model or exact_model(self.decode_s, mixed_s=self.mixed_s),
            pool=self.pool,
            order=self.order,
            static_budget_s=self.static_budget_s,
            tpot_from_arrival=self.tpot_from_arrival,
            policy=self.policy,
            swap=SwapModel(slot_s=self.slot_s),
        )
        self.live: dict[str, Request] = {}

    def add(self, new: Request) -> Request:
        self.scheduler.add(new)
        self.kv.expect(new)
        self.live[new.id] = new
        return new

    def abort(self, name: str) -> None:
        self.live.pop(name)
        self.scheduler.abort(RequestId(name))
        self.kv.free(RequestId(name))
        self.ended[name] = self.ended.get(name, 0) + 1

    def step(self) -> StepPlan:
        sent = self._send()
        self._end(sent)
        return sent.plan

    def _send(self) -> "Sent":
        plan = self.scheduler.plan(self.now_s)
        assert plan == self.scheduler.plan(self.now_s), "plan() must change nothing"
        self._leave(plan)
        for work in plan.work:
            target = self.live[work.request_id]
            hit = None
            if target.id in plan.restore:
                self.kv.restore(target)
            if work.admitted:
                found = self.kv.hit(target)
                assert found.tokens >= work.hit_tokens, "the plan counted on a lost hit"
                hit = PrefixHit(tokens=work.hit_tokens, free_blocks=0)
            self.kv.allocate(target, new_tokens=work.tokens, hit=hit)
        had = {work.request_id: self.live[work.request_id].output_tokens for work in plan.work}
        self.scheduler.begin(plan)
        sent = Sent(plan)
        for work in plan.work:
            target = self.live[work.request_id]
            self.kv.commit(target)
            self.kv.settle()
            if target.output_tokens > had[target.id]:  # all that it knew is computed
                sent.tokens[target.id] = 1
                if target.output_tokens >= target.max_output_tokens:
                    sent.finished.add(target.id)
        self.plans.append(plan)
        return sent

    def _end(self, sent: "Sent") -> None:
        started_s = self.now_s
        self.now_s += self.cost_s(sent.plan)
        self.scheduler.commit(
            sent.plan,
            StepOutcome(
                started_s=started_s,
                ended_s=self.now_s,
                tokens=sent.tokens,
                finished=frozenset(sent.finished),
            ),
        )
        for name in sent.finished:
            self.live.pop(name)
            self.kv.free(name)
            self.ended[name] = self.ended.get(name, 0) + 1

    def _leave(self, plan: StepPlan) -> None:
        for gone in plan.preempt:
            self.kv.preempt(self.live[gone.request_id])
        for work in plan.work if plan.preempt else ():
            if work.admitted and work.hit_tokens:
                hit = PrefixHit(tokens=work.hit_tokens, free_blocks=0)
                self.kv.keep(self.live[work.request_id], hit)

    def cost_s(self, plan: StepPlan) -> float:
        """What the step takes."""
        if not plan.work:
            return plan.idle_s or STEP_S
        shape = plan.shape
        mixed = shape.decode_context if shape.prefill_requests else 0
        seconds = STEP_S + TOKEN_S * shape.prefill_tokens + self.decode_s * shape.decode_requests
        return seconds + self.mixed_s * mixed

    def run(self, steps: int = 500, *, left: int = 0) -> None:
        for _ in range(steps):
            if len(self.live) <= left:
                return
            self.step()
        raise AssertionError(f"{sorted(self.live)} did not end within {steps} steps")


@dataclass
class Sent:
    """A step that the engine computes: its plan, and what it will yield."""

    plan: StepPlan
    tokens: dict[RequestId, int] = field(default_factory=dict)
    finished: set[RequestId] = field(default_factory=set)


@dataclass
class AsyncMiniEngine(MiniEngine):
    """Plans and sends a step while it computes the one before, as vLLM does on GPUs."""

    under_way: Sent | None = None

    def step(self) -> StepPlan:
        before, self.under_way = self.under_way, self._send()
        if before is not None:
            self._end(before)
        return self.under_way.plan
