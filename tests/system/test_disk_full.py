"""A full disk under the agent, or under the control plane's files: a clear state, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.batches import (
    as_jsonl,
    assert_each_line_once,
    finished,
    line,
    results,
    submit,
)
from tests.support.faults import online_answers
from tests.support.stack import Stack
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.vllm, pytest.mark.timeout(600)]
LINES = [line(f"line-{n}", max_tokens=32) for n in range(60)]


@pytest.fixture(scope="module")
def small_disks(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    """A stack whose agent and whose files live on disks of 32 MB each."""
    folder = tmp_path_factory.mktemp("small-disks")
    stack = Stack(
        folder,
        tiny_model,
        disks={"controlplane": folder / "files-disk", "agent": folder / "agent-disk"},
        controlplane={"WEIR_FILES_URL": f"file://{folder}/files-disk/files"},
        agent={"WEIR_DATA_DIR": f"{folder}/agent-disk/data"},
    )
    yield stack
    stack.close()


def completed(stack: Stack, batch_id: str) -> int:
    counts = stack.client().batches.retrieve(batch_id).request_counts
    return counts.completed if counts else 0


def test_a_full_disk_under_the_agent_stops_batch_work_only(small_disks: Stack) -> None:
    """design.md §8.3: no new chunks while it lasts; online goes on; then everything completes."""
    client = small_disks.client()
    with small_disks.agent.full_disk():
        batch = submit(client, as_jsonl(LINES))
        assert eventually(lambda: "disk_full" in small_disks.agent_states())
        assert online_answers(small_disks)
        assert completed(small_disks, batch.id) == 0
    ended = finished(client, batch.id)
    assert ended.status == "completed"
    assert_each_line_once(results(client, ended), LINES)


def test_a_full_disk_under_the_files_is_told_and_loses_nothing(small_disks: Stack) -> None:
    client = small_disks.client()
    batch = submit(client, as_jsonl(LINES))
    with small_disks.controlplane.full_disk():
        with pytest.raises(openai.APIStatusError) as refused:
            client.with_options(max_retries=0).files.create(
                file=("more.jsonl", as_jsonl(LINES) * 100), purpose="batch"
            )
        assert refused.value.status_code == 507
        assert "the file store is full" in str(refused.value.message)
        assert online_answers(small_disks)
    ended = finished(client, batch.id)
    assert ended.status == "completed"
    assert_each_line_once(results(client, ended), LINES)
