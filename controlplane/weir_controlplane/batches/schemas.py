"""Batches on the wire, as OpenAI's clients know them."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from weir_controlplane.batches.progress import Progress
from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.settings import Settings
from weir_controlplane.store.models import Batch

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512
_WINDOW = re.compile(r"(?P<count>[1-9][0-9]{0,5})(?P<unit>[smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIMES = (
    "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
    "cancelling_at", "cancelled_at",
)  # fmt: skip


def check_metadata(value: dict[str, str] | None) -> dict[str, str] | None:
    """The metadata of a batch, within OpenAI's bounds.

    Raises:
        ValueError: it is over a bound.
    """
    if value is None:
        return None
    if len(value) > MAX_METADATA_PAIRS:
        raise ValueError(f"at most {MAX_METADATA_PAIRS} pairs")
    for key, text in value.items():
        if not 0 < len(key) <= MAX_METADATA_KEY_CHARS:
            raise ValueError(f"keys have 1 to {MAX_METADATA_KEY_CHARS} characters")
        if len(text) > MAX_METADATA_VALUE_CHARS:
            raise ValueError(f"values have at most {MAX_METADATA_VALUE_CHARS} characters")
        if "\x00" in key + text:
            raise ValueError("no NUL characters")
        if any("\ud800" <= char <= "\udfff" for char in key + text):
            raise ValueError("half of a surrogate pair is no text: cut texts between characters")
    return value


class OutputExpiry(BaseModel):
    """When the output files end, counted from their creation."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class NewBatch(BaseModel):
    """Body of a batch's creation. Fields that are not known are ignored, as by OpenAI."""

    model_config = ConfigDict(frozen=True)

    input_file_id: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w-]+$")]
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None

    @field_validator("metadata")
    @classmethod
    def _bounded(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        return check_metadata(value)

    @property
    def output_expires_s(self) -> int | None:
        """The life of the output files; None: the default."""
        return self.output_expires_after.seconds if self.output_expires_after else None

    def fingerprint(self, tenant_id: str) -> str:
        """What makes two creates the same: tenant, file, endpoint, window and metadata (§8.7)."""
        identity = [
            tenant_id,
            self.input_file_id,
            self.endpoint,
            self.completion_window,
            self.metadata or {},
            self.output_expires_s,
        ]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def window_s(window: str, settings: Settings) -> int:
    """The length of a completion window such as ``24h`` that is asked for now.

    Raises:
        InvalidRequestError: it cannot be read, or is outside what this control plane allows.
    """
    length_s = _length_s(window)
    if (
        length_s is None
        or not settings.min_completion_window_s <= length_s <= settings.max_completion_window_s
    ):
        raise InvalidRequestError(
            f"completion_window: must be 24h, or another window between "
            f"{_window(settings.min_completion_window_s)} and "
            f"{_window(settings.max_completion_window_s)} (a whole number of s, m, h or d)",
            param="completion_window",
            code="invalid_value",
        )
    return length_s


def accepted_window_s(window: str) -> int:
    """The length of a completion window that was allowed once, whatever is allowed now.

    Raises:
        ValueError: it cannot be read, so it was never allowed.
    """
    length_s = _length_s(window)
    if length_s is None:
        raise ValueError(f"{window!r} is no completion window, and was accepted as one")
    return length_s


def _length_s(window: str) -> int | None:
    match = _WINDOW.fullmatch(window)
    return int(match["count"]) * _UNITS_S[match["unit"]] if match else None


def _window(length_s: int) -> str:
    unit = max((u for u in _UNITS_S if length_s % _UNITS_S[u] == 0), key=_UNITS_S.__getitem__)
    return f"{length_s // _UNITS_S[unit]}{unit}"


def batch_view(batch: Batch, progress: Progress, waiting_reason: str | None) -> dict[str, Any]:
    """A Batch object; ``waiting_reason``, which OpenAI's has not: why nothing of it can run."""
    view: dict[str, Any] = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": None if batch.errors is None else {"object": "list", "data": batch.errors},
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_at),
        "request_counts": {
            "total": batch.total_lines,
            "completed": progress.completed_lines,
            "failed": progress.failed_lines,
        },
        "metadata": batch.labels,
        "usage": _usage_view(batch),
        "waiting_reason": waiting_reason,
    }
    for name in _TIMES:
        value = getattr(batch, name)
        view[name] = None if value is None else int(value)
    return view


def _usage_view(batch: Batch) -> dict[str, Any] | None:
    if batch.input_tokens is None or batch.output_tokens is None:
        return None
    return {
        "input_tokens": batch.input_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens or 0},
        "output_tokens": batch.output_tokens,
        "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens or 0},
        "total_tokens": batch.input_tokens + batch.output_tokens,
    }
