"""The bodies of docs/protocol.md as the agent reads and writes them.

Unknown fields are ignored, missing optional ones take the default of that page. No logic.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]  # more cannot be sent to an engine
Seconds = Annotated[float, Field(allow_inf_nan=False)]
MAX_LEASE_S = 3_600.0  # a longer one would outlive the control plane that no longer renews it
ChunkId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]  # names a folder
AgentState = Literal["starting", "serving", "draining", "engine_down", "disk_full"]


class Wire(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Model(Wire):
    """A model that the engine serves."""

    name: str
    revision: str = ""
    max_model_len: int


class Room(Wire):
    """How much more work the agent can take now; ``line_result_bytes`` it reserves for a line."""

    lines: Count
    tokens: Count
    result_bytes: Count
    line_result_bytes: Count | None = None


class HeldChunk(Wire):
    """A lease that the agent holds."""

    chunk_id: str
    attempt: int
    nonce: str
    lines_done: Count


class ReturnedChunk(Wire):
    """A lease that the agent hands back uncommitted."""

    chunk_id: str
    attempt: int
    nonce: str


class ResidentLine(Wire):
    """An offline line that was in an engine when it died."""

    chunk_id: str
    attempt: int
    line: int


class Death(Wire):
    """An engine that crashed or hung."""

    death_id: str
    kind: Literal["crash", "hang"]
    solo: bool
    resident: tuple[ResidentLine, ...]


class LatencySummary(Wire):
    """A latency over the last minute."""

    count: Count = 0
    mean_s: Seconds = 0.0
    p50_s: Seconds = 0.0
    p90_s: Seconds = 0.0
    p99_s: Seconds = 0.0


class SloReport(Wire):
    """A latency objective and what was measured."""

    metric: str
    statistic: str
    threshold_s: Seconds
    measured_s: Seconds
    attained: bool


class Telemetry(Wire):
    """Aggregates of fixed size."""

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
    step_mean_s: Seconds = 0.0
    step_p99_s: Seconds = 0.0
    preemptions: Count = 0
    predictor_mape: Seconds = 0.0
    ttft: LatencySummary = LatencySummary()
    tbt: LatencySummary = LatencySummary()
    tpot: LatencySummary = LatencySummary()
    slo: tuple[SloReport, ...] = ()


class SyncRequest(Wire):
    """What an agent says once a second."""

    boot_id: str
    incarnation: int | None
    sequence: Annotated[int, Field(ge=1)]
    service: str
    models: tuple[Model, ...]
    state: AgentState
    room: Room
    chunks: tuple[HeldChunk, ...] = ()
    returned: tuple[ReturnedChunk, ...] = ()
    deaths: tuple[Death, ...] = ()
    telemetry: Telemetry = Telemetry()


class Forecast(Wire):
    """The demand that a policy reserves for."""

    method: str = ""
    online_kv_blocks: float = 0


class Policy(Wire):
    """What offline work may use, for ``lease_s`` from the moment the sync was sent."""

    lease_s: Annotated[Seconds, Field(ge=0, le=MAX_LEASE_S)]
    offline_kv_blocks: Count
    offline_seq_slots: Count
    step_budget_s: Annotated[Seconds, Field(ge=0)] | None = None
    forecast: Forecast = Forecast()


class Lease(Wire):
    """A chunk of a batch, leased to this agent."""

    chunk_id: ChunkId
    attempt: Annotated[int, Field(ge=0)]
    nonce: str
    lease_s: Seconds = 90.0
    batch_id: str = ""
    tenant: str = ""
    service: str = ""
    model: str = ""
    revision: str = ""
    endpoint: str = ""
    lines: Count
    bytes: Count = 0
    tokens: Count = 0
    density: float | None = None
    prefix_group: str | None = None
    remaining_lines: Count | None = None
    deadline_s: Seconds | None = None
    solo: bool = False


class Cancel(Wire):
    """A chunk whose work must stop."""

    chunk_id: ChunkId
    reason: str = ""


class SyncReply(Wire):
    """What the control plane answers."""

    incarnation: int
    next_sync_s: Annotated[Seconds, Field(ge=0)] = 1.0
    policy: Policy | None = None
    chunks: tuple[Lease, ...] = ()
    lost: tuple[ChunkId, ...] = ()
    cancel: tuple[Cancel, ...] = ()
    deaths_accepted: tuple[str, ...] = ()
    adopted: tuple[Lease, ...] = ()


class InputLine(Wire):
    """A line of the input file."""

    line: Annotated[int, Field(ge=1)]
    custom_id: str = ""
    url: str
    body: dict[str, Any]


class Usage(Wire):
    """Tokens that a finished line used."""

    input_tokens: Count = 0
    cached_tokens: Count = 0
    output_tokens: Count = 0
    reasoning_tokens: Count = 0


class ResultResponse(Wire):
    """An answer of the engine's HTTP application."""

    status_code: int
    request_id: str
    body: dict[str, Any]


class ResultError(Wire):
    """Why a line has no answer."""

    code: str
    message: str


class ResultLine(Wire):
    """A finished line: an answer or an error."""

    line: Annotated[int, Field(ge=1)]
    request_id: str
    response: ResultResponse | None = None
    error: ResultError | None = None
    usage: Usage | None = None


class CommitRequest(Wire):
    """The lines of an upload, as first-last ranges."""

    attempt: int
    nonce: str
    upload_id: str
    lines: tuple[tuple[int, int], ...]
    final: bool


class CommitReply(Wire):
    """What became of a commit."""

    state: Literal["accepted", "stale", "gone"]
