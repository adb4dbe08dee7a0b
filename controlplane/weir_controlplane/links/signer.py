"""What a signed link is made of: pure apart from the keys, which the database keeps."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link to a file and the time at which it ends, seconds since 1970."""

    url: str
    expires_at: int


class LinkSigner:
    """Signs and checks links with HMAC-SHA256. The first key signs, all verify.

    Args:
        life_s: the longest life of a link. Links of one file are the same for half of it, so that
            whoever writes them down writes seldom.
        base_url: prefix of every link; empty: relative links.
    """

    def __init__(self, *, life_s: int, base_url: str = "") -> None:
        self._life_s = life_s
        self._base_url = base_url.rstrip("/")
        self._keys: tuple[bytes, ...] = ()

    def use(self, keys: Sequence[bytes]) -> None:
        """Takes the keys, the one that signs first."""
        self._keys = tuple(keys)

    def link(self, file_id: str, now_s: float) -> Link:
        """A link that lasts between a half and the whole of its longest life.

        Raises:
            RuntimeError: there are no keys yet: the application has not started.
        """
        if not self._keys:
            raise RuntimeError("links cannot be signed before the keys are read")
        half_s = self._life_s // 2
        expires_at = (int(now_s) // half_s + 2) * half_s
        query = {"expires": expires_at, "signature": _sign(self._keys[0], file_id, expires_at)}
        url = f"{self._base_url}/v1/results/{file_id}?{urlencode(query)}"
        return Link(url=url, expires_at=expires_at)

    def allows(self, file_id: str, *, expires_at: int, signature: str, now_s: float) -> bool:
        """Whether the link is one of ours and still lasts."""
        ours = [
            hmac.compare_digest(_sign(key, file_id, expires_at), signature) for key in self._keys
        ]
        return any(ours) and now_s < expires_at


def new_signing_secret() -> bytes:
    """256 random bits."""
    return secrets.token_bytes(SECRET_BYTES)


def _sign(key: bytes, file_id: str, expires_at: int) -> str:
    return hmac.new(key, f"{file_id}\n{expires_at}".encode(), hashlib.sha256).hexdigest()
