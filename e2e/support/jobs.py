"""BatchJobs of a known number of lines: how far they are, and whether each line came out once."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from openai import OpenAI, OpenAIError
from openai.types import Batch

from e2e.cluster.kubectl import Kubectl
from e2e.support.waiting import PATIENCE_S, NotReachedError, condition, until


@dataclass(frozen=True, kw_only=True)
class Account:
    """What became of the lines of a batch."""

    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    in_order: bool


ALL_ONCE = Account(lost=(), doubled=(), in_order=True)


def account(client: OpenAI, batch_id: str, *, lines: int) -> Account:
    """Reads the output file of a completed batch and counts its lines."""
    batch = client.batches.retrieve(batch_id)
    if batch.output_file_id is None:
        raise LookupError(f"{batch_id} has no output: {batch}")
    found = lines_of(client.files.content(batch.output_file_id).text)
    wanted = [f"line-{number}" for number in range(lines)]
    return Account(
        lost=tuple(sorted(set(wanted) - set(found))),
        doubled=tuple(name for name, times in Counter(found).items() if times > 1),
        in_order=found == wanted,
    )


def lines_of(text: str) -> list[str]:
    """The lines that a file of results answers, in its order."""
    return [str(json.loads(line)["custom_id"]) for line in text.splitlines()]


def newest(client: OpenAI) -> str | None:
    """The id of the tenant's newest batch; None when it has none."""
    return next((batch.id for batch in client.batches.list(limit=1).data), None)


def until_some_done(client: OpenAI, *, after: str | None) -> str:
    """The id of the batch made after ``after``, once some of its lines are done, others not.

    The control plane is asked, since a BatchJob's status may be some seconds late.

    Raises:
        NotReachedError: it has ended already, or no line is done in time.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    found: Batch | None = None
    while time.monotonic() < deadline_s:
        found = next(iter(client.batches.list(limit=1).data), None)
        counts = None if found is None or found.id == after else found.request_counts
        if found is not None and counts is not None and counts.total > 0:
            if 0 < counts.completed < counts.total:
                return found.id
            if counts.completed == counts.total:
                break
        time.sleep(0.1)
    raise NotReachedError(f"never seen with some lines done and others not: {found}")


def until_complete(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """The BatchJob once it is Complete; outages of the API server are waited out.

    Raises:
        NotReachedError: it is not in time, or has failed; the message has its status.
    """
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.clear()
        found.update(kubectl.get("batchjob", name) or {})
        return any(is_true(found, kind) for kind in ("Complete", "Failed"))

    try:
        until(has_ended, f"batchjob/{name} has ended")
    except NotReachedError as error:
        raise NotReachedError(f"{error}: {found.get('status')}") from None
    if not is_true(found, "Complete"):
        raise NotReachedError(f"{name} has failed: {found['status']}")
    return found


def is_true(found: dict[str, Any], kind: str) -> bool:
    """Whether a condition of an object is True."""
    return condition(found, kind).get("status") == "True"


def answers(client: OpenAI) -> bool:
    """Whether the control plane answers this client now."""
    try:
        client.batches.list(limit=1)
    except OpenAIError:
        return False
    return True
