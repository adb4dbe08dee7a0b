"""Whatever is killed, no line is lost or doubled, and online traffic comes back by itself."""

from __future__ import annotations

import pytest

from tests.support.batches import as_jsonl, assert_each_line_once, finished, line, results, submit
from tests.support.faults import VICTIMS, Victim, disturbed_batch, online_answers
from tests.support.killer.sitecustomize import MARKER
from tests.support.stack import Stack
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_costs_no_line(stack: Stack, victim: Victim) -> None:
    """design.md §8.2, §8.4 and §8.12; the engine comes back without anybody's help."""
    after = disturbed_batch(stack, victim, kills=2, seed=1, count=240, max_tokens=64)
    if not after.kills:  # a fast machine ended the batch first
        after = disturbed_batch(stack, victim, kills=2, seed=3, count=960, max_tokens=64)
    assert after.kills > 0
    assert after.status == "completed"
    assert (after.lost, after.doubled, after.failed) == (0, 0, 0)
    assert after.online_back_s is not None


def test_a_line_that_kills_the_engine_fails_alone(stack: Stack) -> None:
    """design.md §8.5: it fails after two deaths at most as the only line; the rest completes."""
    client = stack.client()
    lines = [line(f"harmless-{n}", max_tokens=24) for n in range(30)]
    lines.insert(13, line("deadly", prompt=f"{MARKER} now"))
    batch = finished(client, submit(client, as_jsonl(lines)).id, within_s=400)
    assert batch.status == "completed"
    found = results(client, batch)
    assert_each_line_once(found, lines)
    (failed,) = found.errors
    assert failed["custom_id"] == "deadly"
    assert failed["response"] is None
    assert failed["error"]["code"] == "engine_crash"
    assert eventually(lambda: online_answers(stack))


def test_a_drained_agent_hands_its_work_back(stack: Stack) -> None:
    """design.md §8.4: SIGTERM commits what is finished and returns the rest at once."""
    client = stack.client()
    lines = [line(f"line-{n}", max_tokens=200) for n in range(120)]
    batch = submit(client, as_jsonl(lines))

    def running() -> bool:
        counts = client.batches.retrieve(batch.id).request_counts
        return counts is not None and counts.completed > 0

    assert eventually(running)
    assert stack.agent.terminate() == 0
    stack.agent.start()
    ended = finished(client, batch.id)
    assert ended.status == "completed"
    assert_each_line_once(results(client, ended), lines)
