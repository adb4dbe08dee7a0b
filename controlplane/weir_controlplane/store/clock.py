"""The database's clock as an SQL expression: only it decides leases, windows and expiry (§8.1)."""

from __future__ import annotations

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
