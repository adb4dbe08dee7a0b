"""Ids of everything that the control plane makes: a prefix and 128 random bits."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    """A new id such as ``batch_3f…``; it says nothing about its content or its order."""
    return f"{prefix}{secrets.token_hex(16)}"


def new_nonce() -> str:
    """A fencing nonce: 64 random bits, safe in storage keys."""
    return secrets.token_hex(8)
