"""The log of a control plane, what libraries say included: a line an event, on standard output.

Errors that nobody expected are told by place: their text may quote a request (§8, Security).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.tracebacks import Trace, extract
from structlog.typing import ExcInfo, Processor

_log = structlog.get_logger(__name__)


def configure_logs(level: str) -> None:
    """Sets structlog and the standard library's logging up; ``level`` as in the settings."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stdout.isatty(), exception_formatter=_print_places
    )
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        processors=[*shared, renderer],
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # A form that is wrong is its sender's to know, and the bytes in it are theirs.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Has errors that reach nobody but the event loop logged as all others are."""

    def tell(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Its own message shows the task, and with it the error's text.
        what = {} if error is not None else {"message": context["message"]}
        _log.error("event_loop_error", exc_info=error, **what)

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


def _print_places(out: TextIO, exc_info: ExcInfo) -> None:
    out.write("\n" + places(exc_info))
