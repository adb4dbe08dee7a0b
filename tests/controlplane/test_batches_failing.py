"""What an operator sees of a batch whose validation or end is tried in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import openai
import pytest
from sqlalchemy import update

from tests.controlplane.jobs import ENDPOINT, Lab, input_lines
from tests.controlplane.support import batch_reaches, eventually
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.models import Batch


async def failing(desk: Lab) -> list[dict[str, Any]]:
    queue = (await desk.plane.admin.get("/internal/v1/queue")).json()
    found: list[dict[str, Any]] = queue["failing"]
    return found


async def fails_often(desk: Lab, times: int) -> dict[str, Any]:
    """The only batch that fails, once it has failed so often; nobody waits for its pauses."""

    async def often() -> bool:
        async with desk.plane.services.database.transaction() as session:
            pause_over = update(Batch).where(Batch.work_nonce.is_(None))
            await session.execute(pause_over.values(work_lease_until=0.0))
        await desk.plane.services.nudge.send("batches")
        found = await failing(desk)
        return bool(found) and found[0]["failures"] >= times

    await eventually(often)
    (batch,) = await failing(desk)
    return batch


def broken(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_arguments: object) -> NoReturn:
        raise error

    return fail


async def create(client: openai.AsyncOpenAI) -> str:
    file = await client.files.create(file=("in.jsonl", input_lines(4)), purpose="batch")
    made = await client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    return made.id


async def test_an_outage_of_the_file_store_is_seen_with_its_batches(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await failing(desk) == []
    with monkeypatch.context() as patched:
        refused = ConnectionRefusedError("store:9000 refuses")
        patched.setattr(Storage, "_read_ranges", broken(refused))
        batch_id = await create(desk.openai)
        seen = await fails_often(desk, 3)
        assert (seen["batch_id"], seen["stage"]) == (batch_id, "validating")
        assert seen["error"] == "ConnectionRefusedError: store:9000 refuses"
        assert 0 <= seen["retry_in_s"] <= 60

        async def alerted() -> bool:
            text = (await desk.plane.admin.get("/metrics")).text
            return 'weir_batches_stuck{stage="validating"} 1.0' in text

        await eventually(alerted)
    await batch_reaches(desk.openai, batch_id, "in_progress")
    assert await failing(desk) == []


async def test_an_error_that_nobody_expected_shows_nothing_of_what_was_read(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await desk.submit(4)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    monkeypatch.setattr(Storage, "_create", broken(ValueError("the prompt of line 1")))
    await desk.openai.batches.cancel(batch_id)
    for lease in list(agent.held.values()):
        agent.give_back(lease)
    await agent.sync()
    monkeypatch.setattr(Storage, "_read_ranges", broken(ValueError("the prompt of line 1")))
    seen = await fails_often(desk, 1)
    assert (seen["stage"], seen["error"]) == ("cancelling", "ValueError")
