"""Leases, results and commits over HTTP, as docs/protocol.md gives them, on both databases."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from tests.controlplane.agent_sim import Json, SimAgent, result_line, telemetry
from tests.controlplane.jobs import Lab, input_line, input_lines
from tests.controlplane.support import eventually
from weir_controlplane.dispatch import commits
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch, Chunk


async def test_a_batch_is_leased_run_and_committed_by_one_agent(desk: Lab) -> None:
    batch_id = await desk.submit(40)
    agent = desk.agent()
    await agent.ready()
    batch = await desk.works_until(agent, batch_id, "completed")
    await desk.assert_whole(batch, 40)
    assert batch.usage is not None
    assert batch.usage.total_tokens == 40 * 15


async def test_a_lease_says_what_the_protocol_promises(desk: Lab) -> None:
    batch_id = await desk.submit(8, documents=1)
    agent = desk.agent(revision="r1")
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    assert lease["batch_id"] == batch_id
    assert (lease["attempt"], lease["lease_s"], lease["lines"]) == (1, 90.0, 8)
    assert (lease["model"], lease["revision"], lease["service"]) == ("tiny", "r1", "svc")
    assert lease["endpoint"] == "/v1/chat/completions"
    assert lease["solo"] is False
    assert 0 < lease["deadline_s"] <= 86_400
    lines = await agent.lines(lease)
    assert [item["line"] for item in lines] == list(range(1, 9))
    assert lines[0]["custom_id"] == "line-1"
    assert lines[0]["url"] == "/v1/chat/completions"
    assert lines[0]["body"]["model"] == "tiny"


async def test_a_pod_that_may_run_nothing_gets_nothing(desk: Lab) -> None:
    """Its policy has no slots while online requests need all of its KV blocks."""
    batch_id = await desk.submit(24, documents=1)
    busy, free = desk.agent("pod-0"), desk.agent("pod-1")
    crowded = telemetry(online_kv_blocks=1000)
    await busy.sync(telemetry=crowded)
    assert busy.last["policy"]["offline_seq_slots"] == 0
    await free.ready()
    one = {"lines": 1, "tokens": 10_000_000, "result_bytes": 1 << 30}
    await desk.syncs_until(free, lambda: bool(free.held), room=one)
    for _ in range(3):
        assert (await busy.sync(telemetry=crowded))["chunks"] == []
    await desk.syncs_until(busy, lambda: bool(busy.held))  # its online requests have gone
    for agent in (busy, free):
        for lease in list(agent.held.values()):
            assert await agent.finish(lease) == "accepted"
    await desk.assert_whole(await desk.works_until(free, batch_id, "completed"), 24)


async def test_a_line_that_holds_half_a_character_is_handed_out_as_it_is(desk: Lab) -> None:
    """§8.6: what an engine would refuse is that line's own result, and stops no other line."""
    cut = "a text that was cut within its last character \ud83d"
    content = input_lines(3) + b"\n" + input_line(4, cut)
    await desk.submit_content(content)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    lines = {item["line"]: item["body"] for item in await agent.lines(lease)}
    assert sorted(lines) == [1, 2, 3, 4]
    assert lines[4]["messages"][0]["content"] == cut


async def test_rule_2_a_late_commit_of_an_earlier_attempt_is_told_stale(desk: Lab) -> None:
    """§8.2: a stale commit is told so, and its lines appear once."""
    batch_id = await desk.submit(8, documents=1)
    first, second = desk.agent("pod-0"), desk.agent("pod-1")
    await first.ready()
    await desk.syncs_until(first, lambda: bool(first.held))
    (lease,) = first.held.values()
    lines = await first.lines(lease)
    upload = await first.upload(lease, [result_line(x["line"], "from the dead") for x in lines])
    await second.ready()
    await expire(desk, lease["chunk_id"])
    await desk.syncs_until(second, lambda: bool(second.held))
    (again,) = second.held.values()
    assert again["chunk_id"] == lease["chunk_id"]
    assert again["attempt"] > lease["attempt"]
    assert again["nonce"] != lease["nonce"]
    late = await first.post_commit(lease, upload_id=upload, lines=[[1, 8]], final=True)
    assert late.json() == {"state": "stale"}
    assert await second.finish(again) == "accepted"
    late = await first.post_commit(lease, upload_id=upload, lines=[[1, 8]], final=True)
    assert late.json() == {"state": "stale"}
    await desk.assert_whole(await desk.until(batch_id, "completed"), 8)


async def computed(desk: Lab) -> tuple[SimAgent, Json, list[Json]]:
    """An agent, its only lease, and the results of that."""
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    lines = await agent.lines(lease)
    return agent, lease, [result_line(item["line"], item["custom_id"]) for item in lines]


async def test_rule_2_the_same_upload_and_commit_again_change_nothing(desk: Lab) -> None:
    """§8.2: one conditional update, repeatable."""
    batch_id = await desk.submit(8, documents=1)
    agent, lease, results = await computed(desk)
    upload = await agent.upload(lease, results)
    assert await agent.upload(lease, results) == upload
    for _ in range(2):
        answer = await agent.post_commit(lease, upload_id=upload, lines=[[1, 8]], final=True)
        assert answer.json() == {"state": "accepted"}
    agent.held.clear()
    await desk.assert_whole(await desk.until(batch_id, "completed"), 8)
    answer = await agent.post_commit(
        {**lease, "chunk_id": "chunk_unknown"}, upload_id=upload, lines=[[1, 8]], final=True
    )
    assert answer.json() == {"state": "gone"}


async def test_a_commit_whose_transaction_fails_is_counted_when_it_is_repeated(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.submit(8, documents=1)
    agent, lease, results = await computed(desk)
    upload = await agent.upload(lease, results)
    counted = partial(REGISTRY.get_sample_value, "weir_committed_lines_total")
    before = counted() or 0
    done = commits._commit
    fails = iter([True])

    async def breaks_once(*given: Any) -> Any:  # noqa: ANN401 - as it is
        answer = await done(*given)
        if next(fails, False):
            raise OperationalError("COMMIT", {}, Exception("server closed the connection"))
        return answer

    monkeypatch.setattr(commits, "_commit", breaks_once)
    answers = [
        (await agent.post_commit(lease, upload_id=upload, lines=[[1, 8]], final=True)).status_code
        for _ in range(2)
    ]
    assert answers == [503, 200]
    assert (counted() or 0) - before == 8


@pytest.mark.parametrize(
    ("lines", "final", "code"),
    [
        ([[1, 7]], False, "line_mismatch"),  # not what was uploaded
        ([[1, 9]], True, "line_mismatch"),  # more than the chunk has
        ([[8, 1]], True, "line_mismatch"),
        ([], True, "line_mismatch"),
    ],
)
async def test_rule_2_a_commit_of_other_lines_than_uploaded_is_refused(
    desk: Lab, lines: list[list[int]], final: bool, code: str
) -> None:
    """§8.2: the server checks the exact set of lines."""
    await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    results = [result_line(x["line"], x["custom_id"]) for x in await agent.lines(lease)]
    upload = await agent.upload(lease, results)
    answer = await agent.post_commit(lease, upload_id=upload, lines=lines, final=final)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code
    assert (
        await agent.post_commit(lease, upload_id=upload, lines=[[1, 8]], final=True)
    ).json() == {"state": "accepted"}


async def test_rule_2_results_are_checked_as_they_arrive(desk: Lab) -> None:
    """§8.2: length, hash and the set of lines; a bad body leaves nothing behind."""
    await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    good = b"".join(json.dumps(result_line(n, "x")).encode() + b"\n" for n in (1, 2))
    foreign = json.dumps(result_line(99, "x")).encode() + b"\n"
    unsorted = b"".join(json.dumps(result_line(n, "x")).encode() + b"\n" for n in (2, 1))
    both = json.dumps({**result_line(1, "x"), "error": {"code": "a", "message": "b"}}).encode()
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (good, {"sha256": "0" * 64}, "hash_mismatch"),
        (good, {"sha256": "zz"}, "invalid_value"),
        (good, {"lines": 3}, "line_mismatch"),
        (foreign, {}, "line_mismatch"),
        (unsorted, {}, "line_mismatch"),
        (both + b"\n", {}, "invalid_result"),
        (b"{}\n", {}, "invalid_result"),
        (b"not json\n", {}, "invalid_result"),
        (good.replace(b'"x"', b"NaN"), {}, "invalid_result"),  # nor would the output file be JSON
        (good.replace(b'"x"', b"-1e999"), {}, "invalid_result"),  # read as -Infinity
        (good.replace(b'"x"', b"[" * 9999 + b"]" * 9999), {}, "invalid_result"),
    ]
    for body, given, code in cases:
        answer = await agent.put_results(lease, body, **given)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] == code
    assert await desk.plane.services.storage.keys("results") == []
    stale = await agent.put_results({**lease, "nonce": "other"}, good)
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale_lease")
    answer = await agent.post_commit(lease, upload_id="upload_x", lines=[[1, 2]], final=False)
    assert answer.json()["error"]["code"] == "unknown_upload"


async def test_rule_4_a_partial_commit_keeps_its_lines_and_deals_out_the_rest(desk: Lab) -> None:
    """§8.4: one transaction closes the chunk with its finished lines and makes one of the rest."""
    batch_id = await desk.submit(8, documents=1)
    first, second = desk.agent("pod-0"), desk.agent("pod-1")
    await first.ready()
    await desk.syncs_until(first, lambda: bool(first.held))
    (lease,) = first.held.values()
    assert await first.finish(lease, only={2, 3, 7}) == "accepted"
    await second.ready()
    await desk.syncs_until(second, lambda: bool(second.held))
    (rest,) = second.held.values()
    assert rest["chunk_id"] != lease["chunk_id"]
    assert [item["line"] for item in await second.lines(rest)] == [1, 4, 5, 6, 8]
    assert await second.finish(rest) == "accepted"
    await desk.assert_whole(await desk.until(batch_id, "completed"), 8)


async def test_rule_4_returned_leases_are_leased_again_at_once(desk: Lab) -> None:
    """§8.4: a drain hands its chunks back."""
    batch_id = await desk.submit(40)
    first, second = desk.agent("pod-0"), desk.agent("pod-1")
    await first.ready()
    await desk.syncs_until(first, lambda: bool(first.held))
    leases = list(first.held.values())
    for lease in leases:
        first.give_back(lease)
    assert (await first.sync(state="draining"))["chunks"] == []
    await second.ready()
    await desk.syncs_until(second, lambda: bool(second.held))
    batch = await desk.works_until(second, batch_id, "completed")
    await desk.assert_whole(batch, 40)


async def test_rule_4_cancel_keeps_what_the_holder_commits_in_its_grace(desk: Lab) -> None:
    """§8.4: cancel gives 30 s of grace; committed lines are kept, the rest are cancelled."""
    batch_id = await desk.submit(16, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    await desk.openai.batches.cancel(batch_id)
    await desk.syncs_until(agent, lambda: bool(agent.last["cancel"]))
    assert {item["reason"] for item in agent.last["cancel"]} == {"cancelled"}
    assert {item["chunk_id"] for item in agent.last["cancel"]} == set(agent.held)
    first, *others = list(agent.held.values())
    lines = [item["line"] for item in await agent.lines(first)]
    assert await agent.finish(first, only=lines[:3]) == "accepted"
    for lease in others:
        agent.give_back(lease)
    await agent.sync()
    batch = await desk.until(batch_id, "cancelled")
    found = await desk.assert_whole(batch, 16)
    codes = [item["error"]["code"] for item in found.values() if item["error"]]
    assert codes == ["batch_cancelled"] * 13
    late = await agent.post_commit(
        others[0] if others else first, upload_id="x", lines=[], final=False
    )
    assert late.json()["state"] in {"gone", "stale"}


async def test_rule_12_a_restart_adopts_its_predecessors_leases(desk: Lab) -> None:
    """§8.12: the same pod's new process gets the old leases as new attempts."""
    batch_id = await desk.submit(24)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: len(agent.held) == 3)
    before, old_incarnation = dict(agent.held), agent.incarnation
    old = desk.agent()
    old.incarnation, old.sequence, old.boot = agent.incarnation, agent.sequence + 10, agent.boot
    agent.restart()
    reply = await agent.sync(state="starting")
    assert reply["incarnation"] > (old_incarnation or 0)
    assert {item["chunk_id"] for item in reply["adopted"]} == set(before)
    for lease in reply["adopted"]:
        assert lease["attempt"] == before[lease["chunk_id"]]["attempt"] + 1
        assert lease["nonce"] != before[lease["chunk_id"]]["nonce"]
    refused = await old.post_sync()
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "stale_incarnation")
    for lease in list(agent.held.values()):
        assert await agent.finish(lease) == "accepted"
    await desk.assert_whole(await desk.works_until(agent, batch_id, "completed"), 24)


async def test_rule_12_an_older_sync_is_refused(desk: Lab) -> None:
    """§8.12: syncs carry sequence numbers and older ones are refused."""
    agent = desk.agent()
    await agent.ready()
    await agent.sync()
    agent.sequence -= 1
    refused = await agent.post_sync()
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "stale_sequence")
    agent.sequence += 1
    await agent.sync()


async def test_rule_12_a_repeated_first_call_gets_the_same_incarnation(desk: Lab) -> None:
    """§8.12: the boot id makes the first call repeatable."""
    agent = desk.agent()
    first = await agent.sync()
    agent.incarnation, agent.sequence = None, 0
    again = await agent.sync()
    assert again["incarnation"] == first["incarnation"]


async def test_a_lease_whose_reply_was_lost_comes_again_as_a_new_attempt(desk: Lab) -> None:
    batch_id = await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lost,) = agent.held.values()
    agent.held.clear()  # as if the reply had never come
    await agent.sync()
    (lease,) = agent.held.values()
    assert lease["chunk_id"] == lost["chunk_id"]
    assert lease["attempt"] == lost["attempt"] + 1
    answer = await agent.put_results(lost, b"")
    assert answer.status_code == 409
    assert await agent.finish(lease) == "accepted"
    await desk.assert_whole(await desk.until(batch_id, "completed"), 8)


async def test_rule_1_leases_that_run_out_by_the_databases_clock_are_lost(desk: Lab) -> None:
    """§8.1: expiry by the database's clock; the old holder is told."""
    await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    other = desk.agent("pod-1")
    await other.ready()
    await expire(desk, lease["chunk_id"])
    await desk.syncs_until(other, lambda: bool(other.held))
    lines = await desk.http.get(
        f"/internal/v1/chunks/{lease['chunk_id']}/lines",
        params={"attempt": lease["attempt"], "nonce": lease["nonce"]},
    )
    assert lines.json()["error"]["code"] == "stale_lease"
    agent.returned = [{k: lease[k] for k in ("chunk_id", "attempt", "nonce")}]
    reply = await agent.sync()  # returning what is not one's own changes nothing
    assert reply["lost"] == [lease["chunk_id"]]
    assert await other.finish(next(iter(other.held.values()))) == "accepted"


async def test_rule_12_without_a_matching_model_a_batch_stays_queued_and_says_why(
    desk: Lab,
) -> None:
    """§8.12: without a matching pod it says NoMatchingModel."""
    batch_id = await desk.submit(8)
    agent = desk.agent(model="another")
    await agent.ready()
    assert (await agent.sync())["chunks"] == []

    async def queued() -> list[tuple[str, str | None]]:
        shown = (await desk.plane.admin.get("/internal/v1/queue")).json()["data"]
        return [(item["batch_id"], item["reason"]) for item in shown]

    async def says(reason: str | None) -> bool:
        return await queued() == [(batch_id, reason)]

    async def tells_its_owner(reason: str | None) -> bool:
        told = await desk.openai.batches.retrieve(batch_id)
        (listed,) = (await desk.openai.batches.list()).data
        return told.model_extra == listed.model_extra == {"waiting_reason": reason}

    await eventually(lambda: says("NoMatchingModel"))
    await eventually(lambda: tells_its_owner("NoMatchingModel"))
    tiny = desk.agent("pod-1")
    await tiny.ready()
    await eventually(lambda: says(None))
    await eventually(lambda: tells_its_owner(None))
    await desk.assert_whole(await desk.works_until(tiny, batch_id, "completed"), 8)


async def test_rule_12_the_first_lease_pins_the_revision(desk: Lab) -> None:
    """§8.12: model and revision are part of a batch's contract."""
    batch_id = await desk.submit(16)
    first, other = desk.agent("pod-0", revision="a"), desk.agent("pod-1", revision="b")
    room = {"lines": 1, "tokens": 1_000, "result_bytes": 1 << 30}
    await first.ready()
    await desk.syncs_until(first, lambda: len(first.held) == 1, room=room)
    await other.ready()
    for _ in range(3):
        assert (await other.sync())["chunks"] == []
    await desk.assert_whole(await desk.works_until(first, batch_id, "completed"), 16)


async def test_room_bounds_what_is_handed_out(desk: Lab) -> None:
    await desk.submit(80, documents=1)
    agent = desk.agent()
    await agent.ready()
    room = {"lines": 16, "tokens": 10_000_000, "result_bytes": 1 << 30}
    await desk.syncs_until(agent, lambda: bool(agent.held), room=room)
    assert sum(lease["lines"] for lease in agent.held.values()) == 16
    full = {"lines": 0, "tokens": 0, "result_bytes": 0}
    assert (await agent.sync(room=full))["chunks"] == []
    no_disk = {"lines": 100, "tokens": 10_000_000, "result_bytes": 10}
    assert (await agent.sync(room=no_disk))["chunks"] == []
    assert (await agent.sync(state="disk_full"))["chunks"] == []


async def test_a_chunk_that_no_pod_can_store_is_handed_out_in_parts(desk: Lab) -> None:
    """§8.3: chunks of eight lines, and a disk that takes the worst case of three."""
    batch_id = await desk.submit(16, documents=1)
    agent = desk.agent()
    await agent.ready()
    line_bytes = 8 << 20
    room = {
        "lines": 10_000,
        "tokens": 10_000_000,
        "result_bytes": 3 * line_bytes,
        "line_result_bytes": line_bytes,
    }
    parts: list[int] = []
    while sum(parts) < 16:
        await desk.syncs_until(agent, lambda: bool(agent.held), room=room)
        (lease,) = agent.held.values()
        parts.append(lease["lines"])
        assert len(await agent.lines(lease)) == lease["lines"] <= 3
        assert await agent.finish(lease) == "accepted"
    assert len(parts) == 6
    await desk.assert_whole(await desk.until(batch_id, "completed"), 16)


async def test_pods_get_contiguous_slices_and_keep_their_prefix_families(desk: Lab) -> None:
    await desk.submit(160, documents=20)
    pods = [desk.agent("pod-0"), desk.agent("pod-1")]
    room = {"lines": 8, "tokens": 10_000_000, "result_bytes": 1 << 30}
    groups: list[list[str]] = [[], []]
    for agent in pods:
        await agent.ready()
    for _ in range(8):
        for number, agent in enumerate(pods):
            await desk.syncs_until(agent, lambda agent=agent: bool(agent.held), room=room)  # type: ignore[misc]
            (lease,) = agent.held.values()
            groups[number].append(lease["prefix_group"])
            assert await agent.finish(lease) == "accepted"
    assert len(set(groups[0]) & set(groups[1])) <= 1  # at most where the slices meet


async def test_an_expired_batch_asks_its_holders_to_stop(desk: Lab) -> None:
    batch_id = await desk.submit(16, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    async with desk.plane.services.database.transaction() as session:
        await session.execute(
            update(Batch).where(Batch.id == batch_id).values(expires_at=db_now() - 1)
        )
    await desk.plane.services.nudge.send("batches")
    await desk.syncs_until(agent, lambda: bool(agent.last["cancel"]))
    assert {item["reason"] for item in agent.last["cancel"]} == {"expired"}
    first, *others = list(agent.held.values())
    assert await agent.finish(first) == "accepted"
    for lease in others:
        agent.give_back(lease)
    await agent.sync()
    batch = await desk.until(batch_id, "expired")
    found = await desk.assert_whole(batch, 16)
    codes = {item["error"]["code"] for item in found.values() if item["error"]}
    assert codes <= {"batch_expired"}


async def expire(desk: Lab, chunk_id: str) -> None:
    """Ends the lease of a chunk by the database's clock."""
    from weir_controlplane.dispatch.watch import expire_leases

    async with desk.plane.services.database.transaction() as session:
        await session.execute(
            update(Chunk).where(Chunk.id == chunk_id).values(lease_until=db_now() - 1)
        )
    await expire_leases(desk.plane.services.database)
    await desk.plane.services.nudge.send("chunks")
