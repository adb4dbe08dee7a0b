"""What the scheduler knows between steps: requests by state, prefixes in flight, counters.

Changed by events only (arrival, begin, commit, abort); a plan reads it.
"""

from dataclasses import asdict, dataclass, field

from weir_engine.config import ONLINE_ONLY, EngineShape, Policy
from weir_engine.errors import UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.kv.view import KvView
from weir_engine.request import Request
from weir_engine.sched.cpu_lane import CpuLaneView
from weir_engine.sched.inflight import InflightPrefixes
from weir_engine.sched.plan import Work
from weir_engine.sched.selection import OfflineOrder


@dataclass(slots=True)
class Counters:
    """Sums since the start. Served counts cached prompt tokens, computed does not."""

    steps: int = 0
    offline_steps: int = 0
    preemptions: int = 0
    online_tokens: int = 0
    offline_served_tokens: int = 0
    offline_computed_tokens: int = 0
    offline_hit_tokens: int = 0
    offline_prompt_tokens: int = 0
    online_hit_tokens: int = 0
    online_prompt_tokens: int = 0
    finished_online: int = 0
    finished_offline: int = 0


@dataclass(slots=True, kw_only=True)
class SchedulerState:
    """Requests by where they stand.

    ``running`` holds both classes in the order of admission, ``running_online`` and
    ``running_offline`` one each; ``resuming`` offline requests that were preempted, which go before
    the pool; ``held_until`` the step up to which a decode that was held back stays back,
    ``decodes_wait`` whether the last step left all of them out; ``on_cpu`` offline requests that
    decode on the CPU ``lane``; ``decode_work`` what a plan says of each running request while it
    decodes, made once; ``changes`` counts how often one came to run or stopped.
    """

    shape: EngineShape
    kv: KvView
    pool: OfflineOrder
    lane: CpuLaneView | None = None
    policy: Policy = ONLINE_ONLY
    step: int = 0
    requests: dict[RequestId, Request] = field(default_factory=dict)
    running: dict[RequestId, Request] = field(default_factory=dict)
    running_online: dict[RequestId, Request] = field(default_factory=dict)
    running_offline: dict[RequestId, Request] = field(default_factory=dict)
    waiting_online: dict[RequestId, Request] = field(default_factory=dict)
    resuming: dict[RequestId, Request] = field(default_factory=dict)
    on_cpu: dict[RequestId, Request] = field(default_factory=dict)
    held_until: dict[RequestId, int] = field(default_factory=dict)
    decodes_wait: bool = False
    decode_work: dict[RequestId, Work] = field(default_factory=dict)
    changes: int = 0
    inflight: InflightPrefixes = field(init=False)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.inflight = InflightPrefixes(self.shape.block_size_tokens)

    @property
    def only_online_runs(self) -> bool:
        """True while requests are there, all of them online ones that run."""
        return bool(self.requests) and len(self.requests) == len(self.running_online)

    @property
    def offline_waiting(self) -> int:
        """Offline requests known to the engine that do not run."""
        return len(self.resuming) + len(self.pool)

    def start(self, request: Request, computed_tokens: int) -> None:
        """A request runs from now on, with ``computed_tokens`` found in the cache."""
        request.computed_tokens = computed_tokens
        self.changes += 1
        self.running[request.id] = request
        own = self.running_online if request.is_online else self.running_offline
        own[request.id] = request
        reason = "online-decode" if request.is_online else "offline-decode"
        self.decode_work[request.id] = Work(request_id=request.id, tokens=1, reason=reason)
        self.inflight.start(request, computed_tokens)

    def stop(self, request: Request) -> None:
        """A running request runs no more."""
        self.changes += 1
        del self.running[request.id]
        own = self.running_online if request.is_online else self.running_offline
        del own[request.id], self.decode_work[request.id]
        self.held_until.pop(request.id, None)
        self.inflight.stop(request.id)

    def leave_for_cpu(self, request: Request) -> None:
        """A running offline request goes on decoding on the CPU lane; its blocks are given back."""
        self.stop(request)
        request.preemptions += 1  # what it takes from the cache from now on is no prefix hit
        self.on_cpu[request.id] = request

    def return_from_cpu(self, request: Request) -> None:
        """It takes blocks for what it has computed, and decodes on the GPU when that is there."""
        del self.on_cpu[request.id]
        self.start(request, request.computed_tokens)

    def get(self, request_id: RequestId) -> Request:
        """The request of that id.

        Raises:
            UnknownRequestError: it was never added, or has ended.
        """
        try:
            return self.requests[request_id]
        except KeyError:
            raise UnknownRequestError(f"request {request_id} is not known") from None

    def telemetry(self) -> dict[str, int]:
        """Sums and levels as plain types; fixed size."""
        return {
            **asdict(self.counters),
            "online_running": len(self.running_online),
            "offline_running": len(self.running_offline),
            "online_waiting": len(self.waiting_online),
            "offline_waiting": self.offline_waiting,
            "offline_kv_blocks": self.kv.offline_only_blocks,
            "free_kv_blocks": self.kv.free_blocks,
            "total_blocks": self.kv.total_blocks,
            "block_size_tokens": self.shape.block_size_tokens,
        }
