"""Waiting for a state of the cluster, with what was seen last when it does not come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from e2e.cluster.kubectl import Kubectl, KubectlError

PATIENCE_S = 300
"""For what has no time of its own to be shown: a busy machine is slow, and not wrong."""


class NotReachedError(AssertionError):
    """A state did not come in time; the message has what was seen last."""


def until(
    condition: Callable[[], bool],
    what: str,
    *,
    within_s: float = PATIENCE_S,
    every_s: float = 0.5,
) -> None:
    """Returns when the condition holds; one that kubectl could not ask for does not hold.

    Raises:
        NotReachedError: it does not in time; the message has kubectl's last error.
    """
    deadline_s = time.monotonic() + within_s
    said = ""
    while True:
        try:
            if condition():
                return
        except KubectlError as error:  # the API server may be away for a moment
            said = f" ({error})"
        else:
            said = ""
        if time.monotonic() > deadline_s:
            raise NotReachedError(f"not within {within_s:.0f} s: {what}{said}")
        time.sleep(every_s)


def condition(found: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """A condition of an object; empty when it has none of the kind."""
    status = (found or {}).get("status") or {}
    entries = status.get("conditions") or ()
    return next((entry for entry in entries if entry["type"] == kind), {})


def until_condition(kubectl: Kubectl, kind: str, name: str, wanted: str) -> dict[str, Any]:
    """The object, once a condition of it is True.

    Raises:
        NotReachedError: it is not in time; the message has the object's status.
    """
    found: dict[str, Any] = {}

    def is_true() -> bool:
        found.clear()
        found.update(kubectl.get(kind, name) or {})
        return condition(found, wanted).get("status") == "True"

    try:
        until(is_true, f"{kind}/{name} is {wanted}")
    except NotReachedError as error:
        raise NotReachedError(f"{error}: {json.dumps(found.get('status'), indent=1)}") from None
    return found
