"""BatchJobs between the operator and the control plane, as docs/protocol.md gives them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from weir_controlplane.agents.schemas import Name
from weir_controlplane.batches.schemas import check_metadata

MAX_INLINE_BYTES = 1 << 20  # what a ConfigMap can hold
MAX_PRIORITY = 1000
MAX_KNOWN = 1000

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
DnsName = Annotated[
    str, StringConstraints(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
Uid = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
JobStatus = Literal[
    "suspended", "pending", "validating", "in_progress", "finalizing", "delivering",
    "completed", "failed", "expired", "cancelling", "cancelled",
]  # fmt: skip
DeliveryState = Literal["none", "pending", "done", "failed"]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class JobInput(_Body):
    """Where the lines are: exactly one of the two."""

    inline: str | None = Field(default=None, min_length=1)
    uri: Uri | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.inline is None) == (self.uri is None):
            raise ValueError("give exactly one of inline and uri")
        if self.inline is not None and len(self.inline.encode()) > MAX_INLINE_BYTES:
            raise ValueError(f"inline: over {MAX_INLINE_BYTES} bytes; use a uri")
        return self


class PutBatchJob(_Body):
    """PUT /internal/v1/batchjobs/{uid}.

    Of a job that is known only ``suspended``, ``priority`` and ``deadline_at`` are taken over.
    """

    namespace: DnsLabel
    name: DnsName
    service: DnsName | None = None
    model: Name | None = None
    endpoint: Literal["/v1/chat/completions", "/v1/completions"] = "/v1/chat/completions"
    completion_window: str = "24h"
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    suspended: bool = False
    deadline_at: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    input: JobInput
    output_uri: Uri | None = None
    metadata: dict[str, str] | None = None
    batch_id: str | None = Field(default=None, max_length=100)

    @field_validator("metadata")
    @classmethod
    def _bounded(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        return check_metadata(value)


class RequestCounts(_Body):
    """Lines: all, answered, and ended in an error."""

    total: int
    completed: int
    failed: int


class JobDelivery(_Body):
    """What became of the copy to ``output_uri``. ``none``: the job has no such URI."""

    state: DeliveryState
    output_uri: str | None = None
    error_uri: str | None = None
    message: str | None = None


class BatchJobView(_Body):
    """A BatchJob as the control plane has it. Times ``_at`` are seconds since 1970."""

    object: Literal["batchjob"] = "batchjob"
    uid: str
    namespace: str
    name: str
    batch_id: str | None
    status: JobStatus
    suspended: bool
    input_matches: bool
    model: str | None
    request_counts: RequestCounts
    created_at: float
    in_progress_at: float | None
    expires_at: float | None
    ended_at: float | None
    deadline_at: float | None
    eta_at: float | None
    predicted_miss: bool
    waiting_reason: str | None
    waiting_message: str | None
    errors: list[dict[str, Any]]
    output_file_id: str | None
    error_file_id: str | None
    output_link: str | None
    error_link: str | None
    links_expire_at: float | None
    delivery: JobDelivery


class BatchJobList(_Body):
    """GET /internal/v1/batchjobs, by uid. ``has_more``: go on after ``last_uid``."""

    object: Literal["list"] = "list"
    data: list[BatchJobView]
    last_uid: str | None
    has_more: bool
