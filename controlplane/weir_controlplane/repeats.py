"""Calls that their own client repeats because it had no answer, as the stock client marks them.

A repeat may overtake the call itself, so when each arrived counts too.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

ARRIVED_S = "weir.arrived_s"
"""Of a request's scope: when it came, before anything was waited for."""
_MAX_DIGITS = 4


async def _repeats(x_stainless_retry_count: Annotated[str | None, Header()] = None) -> int:
    count = x_stainless_retry_count or ""
    known = count.isascii() and count.isdecimal() and len(count) <= _MAX_DIGITS
    return int(count) if known else 0


async def _arrived_s(request: Request) -> float:
    return float(request.scope[ARRIVED_S])


RepeatsDep = Annotated[int, Depends(_repeats)]
"""How often the client has sent this call before; 0 where it does not say."""

ArrivedDep = Annotated[float, Depends(_arrived_s)]
"""When the call came, by the monotonic clock."""
