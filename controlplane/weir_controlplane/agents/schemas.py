"""Bodies of the agent protocol, as docs/protocol.md gives them. Unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from weir_controlplane.dispatch.bounds import MAX_HELD_CHUNKS

AgentState = Literal["starting", "serving", "draining", "engine_down", "disk_full"]
NO_NUL = r"^[^\x00]*$"  # PostgreSQL's texts hold none
Name = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=NO_NUL)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[int, Field(ge=1, le=2**53)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ServedModel(_Body):
    """A model that the engine serves. ``revision`` is empty when the agent knows none."""

    name: Name
    revision: str = Field(default="", max_length=253, pattern=NO_NUL)
    max_model_len: Number | None = None


class Room(_Body):
    """How much more work the agent can take now.

    ``line_result_bytes``: what it reserves for the result of one line; None: it does not say.
    """

    lines: Count = 0
    tokens: Count = 0
    result_bytes: Count = 0
    line_result_bytes: Count | None = None


class Fence(_Body):
    """What a lease is known by."""

    attempt: Number
    nonce: Id


class LeaseRef(Fence):
    """A lease as its holder names it."""

    chunk_id: Id


class HeldChunk(LeaseRef):
    """A lease held."""

    lines_done: Count = 0


class ResidentLine(_Body):
    """An offline line in an engine at the moment of its death."""

    chunk_id: Id
    attempt: Number
    line: Number


class Death(_Body):
    """An engine that crashed or hung."""

    death_id: Id
    kind: Literal["crash", "hang"]
    solo: bool = False
    resident: list[ResidentLine] = Field(default_factory=list, max_length=4096)


class LatencySummary(_Body):
    """One latency metric over the last minute; None where nothing was measured."""

    count: Count = 0
    mean_s: Seconds | None = None
    p50_s: Seconds | None = None
    p90_s: Seconds | None = None
    p99_s: Seconds | None = None


class SloState(_Body):
    """One SLO and how it is met."""

    metric: str = Field(max_length=32)
    statistic: str = Field(max_length=32)
    threshold_s: Seconds
    measured_s: Seconds | None = None
    attained: bool | None = None


class Telemetry(_Body):
    """What a pod's engine did in the last window. A missing field is zero or unknown."""

    window_s: Seconds = 0.0
    total_blocks: Count = 0
    block_size_tokens: Count = 0
    online_kv_blocks: Count = 0
    online_reuse_blocks: Count = 0
    offline_kv_blocks: Count = 0
    free_kv_blocks: Count = 0
    online_running: Count = 0
    offline_running: Count = 0
    online_waiting: Count = 0
    offline_waiting: Count = 0
    offline_served_tokens: Count = 0
    offline_computed_tokens: Count = 0
    online_tokens: Count = 0
    steps: Count = 0
    step_mean_s: Seconds | None = None
    step_p99_s: Seconds | None = None
    preemptions: Count = 0
    predictor_mape: Seconds | None = None
    ttft: LatencySummary | None = None
    tbt: LatencySummary | None = None
    tpot: LatencySummary | None = None
    slo: list[SloState] = Field(default_factory=list, max_length=16)


class SyncRequest(_Body):
    """POST /internal/v1/agents/{agent_id}/sync."""

    boot_id: Id
    incarnation: Number | None = None
    sequence: Number
    service: Name
    models: list[ServedModel] = Field(default_factory=list, max_length=64)
    state: AgentState
    room: Room = Room()
    chunks: list[HeldChunk] = Field(default_factory=list, max_length=MAX_HELD_CHUNKS)
    returned: list[LeaseRef] = Field(default_factory=list, max_length=MAX_HELD_CHUNKS)
    deaths: list[Death] = Field(default_factory=list, max_length=64)
    telemetry: Telemetry | None = None


class ForecastReply(_Body):
    """What the threshold was made from."""

    method: str
    online_kv_blocks: int


class PolicyReply(_Body):
    """What offline work may take, for ``lease_s`` from the moment the sync was sent."""

    lease_s: float
    offline_kv_blocks: int
    offline_seq_slots: int
    step_budget_s: float | None
    forecast: ForecastReply


class Lease(_Body):
    """A chunk handed out."""

    chunk_id: str
    attempt: int
    nonce: str
    lease_s: float
    batch_id: str
    tenant: str
    service: str
    model: str
    revision: str
    endpoint: str
    lines: int
    bytes: int
    tokens: int
    density: float
    prefix_group: str
    remaining_lines: int
    deadline_s: float
    solo: bool


class Cancel(_Body):
    """A chunk to stop now: what is finished is committed within the grace."""

    chunk_id: str
    reason: Literal["cancelled", "expired", "suspects", "suspended"]


class SyncReply(_Body):
    """The answer to a sync."""

    incarnation: int
    next_sync_s: float
    policy: PolicyReply | None = None
    chunks: list[Lease] = Field(default_factory=list)
    lost: list[str] = Field(default_factory=list)
    cancel: list[Cancel] = Field(default_factory=list)
    deaths_accepted: list[str] = Field(default_factory=list)
    adopted: list[Lease] = Field(default_factory=list)


class UploadReply(_Body):
    """The answer to a result upload."""

    upload_id: str


class CommitRequest(Fence):
    """POST /internal/v1/chunks/{chunk_id}/commit; ``lines`` are closed [first, last] pairs."""

    upload_id: Id
    lines: list[tuple[int, int]] = Field(max_length=4096)
    final: bool


class CommitReply(_Body):
    """The answer to a commit; on all three the agent deletes its copy."""

    state: Literal["accepted", "stale", "gone"]


class AgentModel(_Body):
    """A model of an agent; its length is not kept with the agent."""

    name: str
    revision: str


class AgentView(_Body):
    """One agent, for operators."""

    agent_id: str
    service: str
    incarnation: int
    state: str
    models: list[AgentModel]
    room: Room
    held_chunks: int
    paused_s: float | None
    last_sync_age_s: float
    telemetry: Telemetry | None
    policy: PolicyReply | None


class AgentList(_Body):
    """GET /internal/v1/agents."""

    object: Literal["list"] = "list"
    data: list[AgentView]


class QueuedBatch(_Body):
    """One running batch, for operators. ``reason``: why it gets nothing, if so.

    ``eta_at``: when it is expected to end, seconds since 1970; None while nothing can be said.
    """

    batch_id: str
    model: str
    revision: str | None
    open_chunks: int
    open_lines: int
    leased_chunks: int
    solo_chunks: int
    expires_in_s: float
    reason: str | None
    eta_at: float | None = None
    predicted_miss: bool = False
    stuck: bool = False


class FailingBatch(_Body):
    """One batch whose validation or end fails, for operators. ``failures``: so far, in a row."""

    batch_id: str
    stage: str
    failures: int
    retry_in_s: float
    error: str


class QueueList(_Body):
    """GET /internal/v1/queue. ``failing``: of all unfinished batches, the 100 worst."""

    object: Literal["list"] = "list"
    data: list[QueuedBatch]
    failing: list[FailingBatch]
