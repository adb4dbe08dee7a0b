"""Waiting for a state of the cluster, with what was seen last when it does not come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from e2e.cluster.kubectl import Kubectl


class NotReachedError(AssertionError):
    """A state did not come in time; the message has what was seen last."""


def until(
    condition: Callable[[], bool], what: str, *, within_s: float, every_s: float = 0.5
) -> None:
    """Returns when the condition holds. Raises NotReachedError when it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise NotReachedError(f"not within {within_s:.0f} s: {what}")
        time.sleep(every_s)


def condition(found: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """A condition of an object; empty when it has none of the kind."""
    status = (found or {}).get("status") or {}
    entries = status.get("conditions") or ()
    return next((entry for entry in entries if entry["type"] == kind), {})


def until_condition(
    kubectl: Kubectl, kind: str, name: str, wanted: str, *, within_s: float
) -> dict[str, Any]:
    """The object, once a condition of it is True.

    Raises:
        NotReachedError: it is not in time; the message has the object's status.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        found = kubectl.get(kind, name)
        if found is not None and condition(found, wanted).get("status") == "True":
            return found
        if time.monotonic() > deadline_s:
            status = json.dumps((found or {}).get("status"), indent=1)
            raise NotReachedError(f"{kind}/{name} is not {wanted} in {within_s:.0f} s: {status}")
        time.sleep(0.5)
