"""`weir queue`: what runs, what waits and why, and what fails, for administrators."""

from __future__ import annotations

from pydantic import BaseModel, Field

from weir_cli.batch import Key, Url, connected
from weir_cli.console import show_rows


class Queued(BaseModel):
    """A running batch, as far as the command shows it."""

    batch_id: str
    model: str
    open_lines: int
    leased_chunks: int
    expires_in_s: float
    reason: str | None = None
    predicted_miss: bool = False
    stuck: bool = False

    @property
    def row(self) -> tuple[str, str, str]:
        """Id, the worst that is known of it, and how far it is."""
        state = self.reason or (
            "stuck" if self.stuck else "late" if self.predicted_miss else "running"
        )
        detail = (
            f"{self.model}: {self.open_lines} lines wait, {self.leased_chunks} chunks are out, "
            f"{self.expires_in_s / 3600:.1f} h left"
        )
        return (self.batch_id, state, detail)


class Failing(BaseModel):
    """A batch whose validation or end is tried again and again."""

    batch_id: str
    stage: str
    failures: int
    retry_in_s: float
    error: str

    @property
    def row(self) -> tuple[str, str, str]:
        """Id, what is tried, and why in vain."""
        return (
            self.batch_id,
            self.stage,
            f"failed {self.failures} times, again in {self.retry_in_s:.0f} s: {self.error}",
        )


class Queue(BaseModel):
    """The answer of ``GET /internal/v1/queue``."""

    data: list[Queued]
    failing: list[Failing] = Field(default_factory=list)


def queue(url: Url = None, api_key: Key = None) -> None:
    """Show running batches, why each waits, and batches whose work fails (admin key)."""
    with connected(url, api_key) as api:
        found = api.parsed(Queue, api.call("GET", "/internal/v1/queue"))
    rows = [*(item.row for item in found.failing), *(item.row for item in found.data)]
    show_rows(("batch", "state", "detail"), rows)
