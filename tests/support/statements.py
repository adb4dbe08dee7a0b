"""SQL statements, compiled once for all databases of a run instead of once for each test.

SQLAlchemy keeps what it compiled for one engine; most tests make an engine of their own and would
compile a hundred statements again.
"""

from functools import cache
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.ext.asyncio import AsyncEngine

_COMPILED: dict[Any, Any] = {}


def share_compiled(engine: AsyncEngine) -> None:
    """The engine uses what others of the same database and driver compiled before."""
    own = engine.sync_engine
    own.dialect.__class__ = _alike(type(own.dialect))  # type: ignore[arg-type]
    own.update_execution_options(compiled_cache=_COMPILED)


@cache
def _alike(dialect: type[Dialect]) -> type[Dialect]:
    """The same dialect, whose instances are equal: what was compiled is found by its dialect."""
    return type(
        dialect.__name__,
        (dialect,),
        {
            "__eq__": lambda self, other: type(self) is type(other),
            "__hash__": lambda self: hash(type(self)),
            "supports_statement_cache": True,  # each class must say so itself
        },
    )
