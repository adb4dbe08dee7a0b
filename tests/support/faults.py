"""Kills one process of a stack at random moments of a batch, and says what became of the batch."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Literal

from openai import APIConnectionError, APIStatusError
from openai.types import Batch

from tests.support.batches import (
    TERMINAL,
    Results,
    as_jsonl,
    finished,
    results,
    shared_document_lines,
    submit,
)
from tests.support.stack import MODEL, Stack
from tests.support.waiting import eventually

Victim = Literal["agent", "controlplane", "engine"]
VICTIMS: tuple[Victim, ...] = ("agent", "controlplane", "engine")
LATEST = 0.7  # of the lines done at the last kill: some of the batch has to be left to hit
PATIENCE_S = 400


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """A batch that was disturbed. ``kills`` counts those that hit before it ended.

    ``moments`` are the shares of its lines that were done at each kill. ``online_back_s`` is the
    longest time from a kill until online requests were answered again, None when they never were;
    of the control plane's kills it is measured while that is still down.
    """

    kills: int
    moments: tuple[float, ...]
    status: str
    lines: int
    lost: int
    doubled: int
    failed: int
    online_back_s: float | None
    seconds: float


def disturbed_batch(
    stack: Stack,
    victim: Victim,
    *,
    kills: int,
    seed: int,
    count: int = 600,
    max_tokens: int = 160,
) -> Aftermath:
    """Runs a batch of ``count`` lines, killing ``victim`` up to ``kills`` times while it runs."""
    source = random.Random(f"{victim} {seed}")  # noqa: S311 - when to strike
    lines = shared_document_lines(count, documents=10, document_tokens=150, max_tokens=max_tokens)
    client = stack.client()
    started_s = time.monotonic()
    batch = submit(client, as_jsonl(lines))
    moments: list[float] = []
    back: list[float | None] = []
    for share in sorted(source.uniform(0, LATEST) for _ in range(kills)):
        reached = _share_done(stack, batch.id, share, len(lines))
        if reached is None:
            break
        time.sleep(source.uniform(0, 0.5))  # not only just after commits
        if _ended(stack, batch.id):
            break
        back.append(kill(stack, victim))
        moments.append(reached)
    ended = finished(client, batch.id, within_s=PATIENCE_S)
    found = results(client, ended)
    wanted = [str(item["custom_id"]) for item in lines]
    return Aftermath(
        kills=len(moments),
        moments=tuple(moments),
        status=ended.status,
        lines=len(wanted),
        lost=len(set(wanted) - set(found.custom_ids)),
        doubled=_doubled(found),
        failed=len(found.errors),
        online_back_s=_longest(back),
        seconds=time.monotonic() - started_s,
    )


def kill(stack: Stack, victim: Victim) -> float | None:
    """SIGKILL, then what a supervisor does: start the process again. The engine is the agent's.

    Returns:
        Seconds until an online request was answered; None when none was within two minutes.
    """
    if victim == "controlplane":
        stack.controlplane.kill()
        back_s = _until_online(stack)
        stack.controlplane.start()
        return back_s
    if victim == "agent":
        stack.agent.kill()
        stack.agent.start(wait=False)
    elif eventually(lambda: stack.engine_pid() is not None, within_s=120):
        stack.kill_engine()
    return _until_online(stack)


def online_answers(stack: Stack) -> bool:
    """Whether an ordinary request to the agent is answered in full now."""
    try:
        answer = stack.online().completions.create(
            model=MODEL, prompt="are you there?", max_tokens=4, temperature=0, timeout=120
        )
    except (APIConnectionError, APIStatusError):
        return False
    return answer.usage is not None and answer.usage.completion_tokens == 4


def _until_online(stack: Stack) -> float | None:
    started_s = time.monotonic()
    if not eventually(lambda: online_answers(stack), within_s=280):
        return None
    return time.monotonic() - started_s


def _longest(back: list[float | None]) -> float | None:
    known = [seconds for seconds in back if seconds is not None]
    return max(known, default=0.0) if len(known) == len(back) else None


def _share_done(stack: Stack, batch_id: str, share: float, lines: int) -> float | None:
    """Waits until that share of the lines is done; the share then, None once the batch ended."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        batch = _look(stack, batch_id)
        if batch is not None and batch.status in TERMINAL:
            return None
        counts = batch.request_counts if batch is not None else None
        done = (counts.completed + counts.failed) / lines if counts else 0.0
        if batch is not None and done >= share:
            return done
        time.sleep(0.1)
    raise TimeoutError(f"{batch_id} is not {share:.0%} done after {PATIENCE_S} s")


def _ended(stack: Stack, batch_id: str) -> bool:
    batch = _look(stack, batch_id)
    return batch is not None and batch.status in TERMINAL


def _look(stack: Stack, batch_id: str) -> Batch | None:
    try:
        return stack.client().batches.retrieve(batch_id)
    except (APIConnectionError, APIStatusError):
        return None


def _doubled(found: Results) -> int:
    return len(found.custom_ids) - len(set(found.custom_ids))
