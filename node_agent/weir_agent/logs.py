"""The log of an agent, what libraries say included: JSON, a line an event, on standard error.

Errors that nobody expected are told by place: their text may quote a request (§8, Security).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import structlog
from structlog.tracebacks import Trace, extract
from structlog.typing import ExcInfo, Processor

log = structlog.get_logger(__name__)


def configure_logging(level: str) -> None:
    """Sets structlog and the standard library's logging up; ``level`` as in the settings."""
    number = logging.getLevelNamesMapping()[level.upper()]
    stamp = structlog.processors.TimeStamper(fmt="iso")
    render: list[Processor] = [
        structlog.processors.ExceptionRenderer(places),
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                stamp,
                *render,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Has errors that reach nobody but the event loop logged as all others are."""

    def tell(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Its own message shows the task, and with it the error's text.
        what = {} if error is not None else {"message": context["message"]}
        log.error("event_loop.error", exc_info=error, **what)

    loop.set_exception_handler(tell)


def places(exc_info: ExcInfo) -> str:
    """The types of an error and of its causes, and where each was raised."""
    return _places(extract(*exc_info))


def _places(trace: Trace) -> str:
    told = []
    for stack in trace.stacks:
        frames = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in stack.frames]
        told.append("\n".join([f"{stack.exc_type}, raised at", *frames]))
        told += [_places(inner) for inner in stack.exceptions]
    return "\nafter ".join(told)
