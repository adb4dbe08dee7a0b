"""What a key looks like, and how it is compared. Pure apart from the random source."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Literal

Scope = Literal["tenant", "admin", "agent"]
Role = Literal["tenant", "admin", "agent", "operator"]  # the last one has no keys
_SHAPE = re.compile(r"weir_(?P<prefix>[0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, kw_only=True)
class KeySecret:
    """A key as its holder has it. Shown once; only prefix and hash are stored."""

    text: str = field(repr=False)
    prefix: str

    @property
    def hash(self) -> str:
        """SHA-256, hex. A slow hash would add nothing: the secret has 256 random bits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def matches(self, stored_hash: str) -> bool:
        """Whether this is the key with that hash, in constant time."""
        return hmac.compare_digest(self.hash, stored_hash)


def new_secret() -> KeySecret:
    """A new key: 48 random bits of lookup prefix and 256 of secret."""
    prefix = secrets.token_hex(6)
    return KeySecret(text=f"weir_{prefix}_{secrets.token_urlsafe(32)}", prefix=prefix)


def parse_secret(text: str) -> KeySecret | None:
    """The key that ``text`` is, or None when it cannot be one."""
    match = _SHAPE.fullmatch(text)
    return KeySecret(text=text, prefix=match["prefix"]) if match else None
