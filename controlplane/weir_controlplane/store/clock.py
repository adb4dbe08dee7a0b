"""The database's clock, as an SQL expression: only it decides leases, windows and expiry (§8.1).

Between readings a replica knows about what it says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class db_now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function that it is
    """Seconds since 1970 by the database's clock, at the moment of evaluation, as a double."""

    type = Double()
    inherit_cache = True


@compiles(db_now, "sqlite")
def _sqlite(_element: db_now, _compiler: Any, **_options: Any) -> str:  # noqa: ANN401
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(db_now, "postgresql")
def _postgresql(_element: db_now, _compiler: Any, **_options: Any) -> str:  # noqa: ANN401
    # clock_timestamp(), not now(): a transaction that waited for a lock must not see the past.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


class DatabaseTime:
    """The database's clock, carried on by the monotonic one between readings. Seconds."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._offset_s = time.time() - clock_s()

    def read(self, now_s: float) -> None:
        """Takes a reading of the database's clock."""
        self._offset_s = now_s - self._clock_s()

    def now_s(self) -> float:
        """About what the database's clock says; for plans and telemetry, never for leases."""
        return self._clock_s() + self._offset_s
