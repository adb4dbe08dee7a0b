"""The log of the operator: JSON throughout, kopf included; a watch refused once is no alarm.

Errors are told by place: a BatchJob's input may be what they quote.
"""

from __future__ import annotations

import json
import subprocess
import sys

SPEAKS = """
import asyncio
import logging
import structlog
from weir_operator.cluster.watch import quiet_kopf
from weir_operator.logs import configure_logging, log_loop_errors

configure_logging("info")
quiet_kopf()
structlog.get_logger().info("operator.started", port=1)
watching = logging.getLogger("kopf._cogs.clients.watching")
for number in (1, 2, 3):
    watching.error(f"Request attempt #{number} failed; will retry: GET /x -> refused")
watching.error("Request attempt #1 failed; escalating: GET /x -> refused")
logging.getLogger("kopf.objects").info("an event")
try:
    raise ValueError("once upon a time")
except ValueError:
    logging.getLogger("kopf._core").exception("a defect")

async def many():
    raise KeyError("once upon a time")

async def main():
    log_loop_errors(asyncio.get_running_loop())
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(many())
    except* KeyError:
        structlog.get_logger().exception("several")
    asyncio.get_running_loop().call_soon(int, "once upon a time")
    await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_every_line_is_json_and_only_tries_that_go_on_failing_are_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["level"], line["event"]) for line in lines] == [
        ("info", "operator.started"),
        ("warning", "Request attempt #3 failed; will retry: GET /x -> refused"),
        ("error", "Request attempt #1 failed; escalating: GET /x -> refused"),
        ("error", "a defect"),
        ("error", "several"),
        ("error", "event_loop.error"),
    ]
    assert all(line["timestamp"] for line in lines)
    defect, several, adrift = (line["exception"] for line in lines[-3:])
    assert lines[-3]["logger"] == "kopf._core"
    assert defect.startswith("ValueError, raised at\n  <string>:")
    assert "KeyError, raised at" in several
    assert " in many" in several
    assert adrift.startswith("ValueError, raised at")
    assert "once upon" not in done.stderr
