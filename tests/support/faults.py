"""Kills one process of a stack at random moments of a batch, and says what became of the batch."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Literal

from openai import APIConnectionError, APIStatusError

from tests.support.batches import (
    TERMINAL,
    Results,
    as_jsonl,
    finished,
    results,
    shared_document_lines,
    submit,
)
from tests.support.stack import MODEL, Stack, eventually

Victim = Literal["agent", "controlplane", "engine"]
VICTIMS: tuple[Victim, ...] = ("agent", "controlplane", "engine")


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """A batch that was disturbed. ``kills`` counts those that hit before it ended."""

    kills: int
    status: str
    lines: int
    lost: int
    doubled: int
    failed: int
    online_back: bool
    seconds: float


def disturbed_batch(stack: Stack, victim: Victim, *, kills: int, seed: int) -> Aftermath:
    """Runs a batch, killing ``victim`` up to ``kills`` times while it runs."""
    source = random.Random(f"{victim} {seed}")  # noqa: S311 - when to strike
    lines = shared_document_lines(200, documents=10, document_tokens=150, max_tokens=64)
    client = stack.client()
    started_s = time.monotonic()
    batch = submit(client, as_jsonl(lines))
    done = 0
    while done < kills:
        time.sleep(source.uniform(0.2, 1.5))
        if _status(stack, batch.id) in TERMINAL:
            break
        kill(stack, victim)
        done += 1
    ended = finished(client, batch.id)
    found = results(client, ended)
    wanted = [str(item["custom_id"]) for item in lines]
    return Aftermath(
        kills=done,
        status=ended.status,
        lines=len(wanted),
        lost=len(set(wanted) - set(found.custom_ids)),
        doubled=_doubled(found),
        failed=len(found.errors),
        online_back=eventually(lambda: online_answers(stack), within_s=120),
        seconds=time.monotonic() - started_s,
    )


def kill(stack: Stack, victim: Victim) -> None:
    """SIGKILL, then what a supervisor does: start the process again. The engine is the agent's."""
    if victim == "engine":
        if eventually(lambda: stack.engine_pid() is not None, within_s=60):
            stack.kill_engine()
        return
    component = stack.agent if victim == "agent" else stack.controlplane
    component.kill()
    component.start()


def online_answers(stack: Stack) -> bool:
    """Whether an ordinary request to the agent is answered in full now."""
    try:
        answer = stack.online().completions.create(
            model=MODEL, prompt="are you there?", max_tokens=4, temperature=0, timeout=30
        )
    except (APIConnectionError, APIStatusError):
        return False
    return answer.usage is not None and answer.usage.completion_tokens == 4


def _status(stack: Stack, batch_id: str) -> str:
    try:
        return stack.client().batches.retrieve(batch_id).status
    except (APIConnectionError, APIStatusError):
        return "unknown"


def _doubled(found: Results) -> int:
    return len(found.custom_ids) - len(set(found.custom_ids))
