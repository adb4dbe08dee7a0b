"""Files on the wire, as OpenAI's clients know them."""

from __future__ import annotations

from typing import Any

from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.store.models import File

PURPOSES = ("batch", "assistants", "evals", "fine-tune", "user_data", "vision")
MIN_EXPIRY_S = 3600
MAX_EXPIRY_S = 2_592_000
MAX_FILENAME_CHARS = 255


def file_view(file: File) -> dict[str, Any]:
    """A FileObject. Always ``processed``: clients poll until it is."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def clean_filename(given: str) -> str:
    """The client's name for a file, for display only."""
    shown = "".join(char for char in given if char.isprintable()).strip()
    return shown[-MAX_FILENAME_CHARS:] or "file"


def check_purpose(value: str | None) -> str:
    """The purpose of an upload.

    Raises:
        InvalidRequestError: it is missing or unknown.
    """
    if value not in PURPOSES:
        raise InvalidRequestError(
            f"purpose: must be one of {', '.join(PURPOSES)}", param="purpose", code="invalid_value"
        )
    return value


def check_expiry_s(anchor: str | None, seconds: str | None) -> int | None:
    """The life of an upload in seconds; None: no end.

    Raises:
        InvalidRequestError: the anchor is not created_at, or the seconds are out of range.
    """
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequestError(
            "expires_after[anchor]: must be created_at", param="expires_after", code="invalid_value"
        )
    if seconds is None or not seconds.isdecimal() or len(seconds) > len(str(MAX_EXPIRY_S)):
        value = 0
    else:
        value = int(seconds)
    if not MIN_EXPIRY_S <= value <= MAX_EXPIRY_S:
        raise InvalidRequestError(
            f"expires_after[seconds]: must be between {MIN_EXPIRY_S} and {MAX_EXPIRY_S}",
            param="expires_after",
            code="invalid_value",
        )
    return value
