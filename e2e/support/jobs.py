"""BatchJobs of a known number of lines: how far they are, and whether each line came out once."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from openai import OpenAI, OpenAIError
from openai.types import Batch

from e2e.cluster.kubectl import Kubectl, KubectlError
from e2e.support.waiting import NotReachedError, condition


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
    text = client.files.content(batch.output_file_id).text
    found = [str(json.loads(line)["custom_id"]) for line in text.splitlines()]
    wanted = [f"line-{number}" for number in range(lines)]
    return Account(
        lost=tuple(sorted(set(wanted) - set(found))),
        doubled=tuple(name for name, times in Counter(found).items() if times > 1),
        in_order=found == wanted,
    )


def newest(client: OpenAI) -> str | None:
    """The id of the tenant's newest batch; None when it has none."""
    return next((batch.id for batch in client.batches.list(limit=1).data), None)


def until_some_done(client: OpenAI, *, after: str | None, within_s: float) -> str:
    """The id of the batch made after ``after``, once some of its lines are done, others not.

    The control plane is asked, since a BatchJob's status may be some seconds late.

    Raises:
        NotReachedError: it has ended already, or no line is done in time.
    """
    deadline_s = time.monotonic() + within_s
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


def until_complete(kubectl: Kubectl, name: str, *, within_s: float) -> dict[str, Any]:
    """The BatchJob once it is Complete; outages of the API server are waited out.

    Raises:
        NotReachedError: it is not in time, or has failed.
    """
    deadline_s = time.monotonic() + within_s
    found: dict[str, Any] | None = None
    while time.monotonic() < deadline_s:
        try:
            found = kubectl.get("batchjob", name)
        except KubectlError:
            time.sleep(1)
            continue
        if condition(found, "Complete").get("status") == "True" and found is not None:
            return found
        if condition(found, "Failed").get("status") == "True":
            break
        time.sleep(0.5)
    raise NotReachedError(
        f"{name} is not Complete in {within_s:.0f} s: {(found or {}).get('status')}"
    )


def answers(client: OpenAI) -> bool:
    """Whether the control plane answers this client now."""
    try:
        client.batches.list(limit=1)
    except OpenAIError:
        return False
    return True
