"""What a control plane answers with and is asked for, as far as the commands show it."""

from __future__ import annotations

from pydantic import BaseModel, Field

TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})


class RequestCounts(BaseModel):
    """Lines of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class ContentError(BaseModel):
    """One reason for which a batch failed before any line ran."""

    code: str | None = None
    line: int | None = None
    message: str | None = None
    param: str | None = None


class ContentErrors(BaseModel):
    """The first reasons for which a batch failed."""

    data: list[ContentError] = Field(default_factory=list)


class Batch(BaseModel):
    """A batch, as far as the commands show it."""

    id: str
    status: str
    endpoint: str
    created_at: int
    input_file_id: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: ContentErrors | None = None
    request_counts: RequestCounts | None = None
    waiting_reason: str | None = None

    @property
    def terminal(self) -> bool:
        """Whether the batch will not change any more."""
        return self.status in TERMINAL

    @property
    def state(self) -> str:
        """The status, and why nothing of the batch can run now."""
        return f"{self.status} ({self.waiting_reason})" if self.waiting_reason else self.status

    @property
    def counts(self) -> RequestCounts:
        """The line counts, zero while unknown."""
        return self.request_counts or RequestCounts()


class StoredFile(BaseModel):
    """A file that was uploaded."""

    id: str


class ApiKey(BaseModel):
    """An API key without its secret. Times are seconds since the epoch."""

    id: str
    scope: str
    name: str = ""
    tenant: str = ""
    agent_id: str | None = None
    prefix: str = ""
    expires_at: int | None = None
    revoked: bool = False


class NewApiKey(ApiKey):
    """A key just made, with its secret."""

    key: str


class Tenant(BaseModel):
    """A tenant. Its limits are None where the control plane's own hold."""

    id: str
    name: str
    max_batches: int | None = None
    max_queued_tokens: int | None = None


class KeyRequest(BaseModel):
    """What a new key is for; the server checks what goes with what."""

    scope: str
    tenant: str | None = None
    agent_id: str | None = None
    name: str | None = None
    expires_in_s: float | None = None
