"""The log of the operator: JSON throughout, kopf included; a watch refused once is no alarm."""

from __future__ import annotations

import json
import subprocess
import sys

SPEAKS = """
import logging
import structlog
from weir_operator.cluster.watch import quiet_kopf
from weir_operator.main import configure_logging

configure_logging("info")
quiet_kopf()
structlog.get_logger().info("operator.started", port=1)
watching = logging.getLogger("kopf._cogs.clients.watching")
for number in (1, 2, 3):
    watching.error(f"Request attempt #{number} failed; will retry: GET /x -> refused")
watching.error("Request attempt #1 failed; escalating: GET /x -> refused")
logging.getLogger("kopf.objects").info("an event")
try:
    raise ValueError("broken")
except ValueError:
    logging.getLogger("kopf._core").exception("a defect")
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
    ]
    assert all(line["timestamp"] for line in lines)
    assert "ValueError: broken" in lines[-1]["exception"]
    assert lines[-1]["logger"] == "kopf._core"
