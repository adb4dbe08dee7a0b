"""BatchJobs of a known number of lines: how far they are, and whether each line came out once."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from openai import OpenAI, OpenAIError

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


def until_some_done(kubectl: Kubectl, client: OpenAI, name: str, *, within_s: float) -> str:
    """The id of a BatchJob's batch, once some of its lines are done and others are not.

    Raises:
        NotReachedError: it has ended already, or no line is done in time.
    """
    deadline_s = time.monotonic() + within_s
    batch_id: str | None = None
    while time.monotonic() < deadline_s:
        if batch_id is None:
            found: dict[str, Any] = kubectl.get("batchjob", name) or {}
            batch_id = (found.get("status") or {}).get("batchID")
        else:
            counts = client.batches.retrieve(batch_id).request_counts
            if counts is not None and 0 < counts.completed < counts.total:
                return batch_id
            if counts is not None and 0 < counts.total == counts.completed:
                raise NotReachedError(f"{name} ended before anything could happen to it: {counts}")
        time.sleep(0.2)
    raise NotReachedError(f"no line of {name} ({batch_id}) is done in {within_s:.0f} s")


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
