"""When batches are expected to end: the rule, and what operators and jobs see of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from tests.controlplane.agent_sim import BIG_ROOM, telemetry
from tests.controlplane.support import eventually
from tests.controlplane.test_batchjobs_api import Operator, operator
from weir_controlplane.agents import registry
from weir_controlplane.errors import StorageError
from weir_controlplane.eta import keeper, standstill
from weir_controlplane.eta.predict import (
    Pool,
    RateEvidence,
    Remaining,
    is_missed,
    least,
    margin_s,
    pooled,
    rate_of,
    seconds_to_end,
)
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch, Chunk, ChunkResult

Json = dict[str, Any]


def left(batch_id: str, tokens: float, *, tenant: str = "a", **given: Any) -> Remaining:  # noqa: ANN401
    on = frozenset(given.pop("services", "x"))
    values: Json = {"rank": 2, "priority": 0, "created_at": 0.0, "services": on, **given}
    return Remaining(batch_id=batch_id, tenant_id=tenant, tokens=tokens, **values)


def pool(services: str, tokens_per_s: float) -> Pool:
    return Pool(services=frozenset(services), tokens_per_s=tokens_per_s)


def test_a_tenants_batches_follow_each_other_by_priority_and_age() -> None:
    ends = seconds_to_end(
        [
            left("young", 100, created_at=2.0),
            left("old", 300, created_at=1.0),
            left("first", 50, created_at=3.0, priority=1),
        ],
        [pool("x", 10)],
    )
    assert ends == {"first": 5, "old": 35, "young": 45}


def test_tenants_share_the_rate() -> None:
    ends = seconds_to_end([left("x", 100), left("y", 300, tenant="b")], [pool("x", 10)])
    assert ends == {"x": 20, "y": 40}


def test_an_urgent_batch_goes_before_the_others() -> None:
    ends = seconds_to_end(
        [left("calm", 100), left("urgent", 200, tenant="b", rank=0)], [pool("x", 10)]
    )
    assert ends == {"urgent": 20, "calm": 30}


def test_a_batch_waits_for_the_pods_that_may_run_it_and_for_no_others() -> None:
    """Of two services with one model the rates were summed, for a batch of one of them, too."""
    batches = [
        left("pinned", 200, services="x"),
        left("anywhere", 300, tenant="b", services="xy"),
        left("later", 100, tenant="b", services="y", created_at=1.0),
    ]
    # x serves two tenants until "anywhere" is done, 5 and 10 tokens a second: after 20 s.
    ends = seconds_to_end(batches, [pool("x", 10), pool("y", 10)])
    assert ends == pytest.approx({"anywhere": 20, "pinned": 30, "later": 30})
    assert "pinned" not in seconds_to_end(batches, [pool("y", 10)])


@given(st.lists(st.frozensets(st.sampled_from("abcde")), max_size=5))
def test_pools_are_the_services_that_the_same_batches_may_use(used: list[frozenset[str]]) -> None:
    parts = pooled(used)
    assert sorted(service for part in parts for service in part) == sorted(frozenset().union(*used))
    assert all(part <= services or not part & services for part in parts for services in used)
    kinds = {service: [service in services for services in used] for service in "abcde"}
    for part in parts:  # no finer than it must be
        assert len({str(kinds[service]) for service in part}) == 1
    assert len({str(kinds[next(iter(part))]) for part in parts}) == len(parts)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 1000)), max_size=12
    )
)
def test_the_last_batch_ends_when_all_the_work_is_done(work: list[tuple[str, int, int]]) -> None:
    batches = [
        left(f"batch-{number}", tokens, tenant=tenant, rank=rank)
        for number, (tenant, rank, tokens) in enumerate(work)
    ]
    ends = seconds_to_end(batches, [pool("x", 4.0)])
    assert set(ends) == {item.batch_id for item in batches}
    total = sum(item.tokens for item in batches)
    assert max(ends.values(), default=0.0) == pytest.approx(total / 4.0)
    assert all(ends[item.batch_id] >= item.tokens / 4.0 - 1e-6 for item in batches)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        pool("x", 0)


def test_the_first_evidence_of_a_rate_counts() -> None:
    known = RateEvidence(committed=5, told=4, before=3, pods=2)
    assert rate_of(known, chunk_tokens=600) == 5
    assert rate_of(RateEvidence(told=4, before=3, pods=2), chunk_tokens=600) == 4
    assert rate_of(RateEvidence(before=3, pods=2), chunk_tokens=600) == 3
    assert rate_of(RateEvidence(pods=2), chunk_tokens=600) == 20
    assert rate_of(RateEvidence(), chunk_tokens=600) == 10


def test_the_margin_is_what_is_left_after_the_expected_end() -> None:
    assert margin_s(150.0, deadline_at=200.0, now_s=100.0) == 50
    assert margin_s(250.0, deadline_at=200.0, now_s=100.0) == -50
    assert (
        margin_s(50.0, deadline_at=200.0, now_s=300.0) == -100
    )  # overdue: it cannot end before now
    assert margin_s(None, deadline_at=200.0, now_s=150.0) == 50
    assert not is_missed(200.0, deadline_at=200.0, now_s=100.0)
    assert is_missed(201.0, deadline_at=200.0, now_s=100.0)


def test_the_batches_with_the_least_margin_are_shown() -> None:
    assert least({"a": 5.0, "b": -1.0, "c": 5.0, "d": 9.0}, 3) == ["b", "a", "c"]


@pytest.fixture
async def op(tmp_path: Path, database_url: str) -> AsyncIterator[Operator]:
    async with operator(tmp_path, database_url, chunk_lines=4) as it:
        yield it


async def queued(op: Operator) -> Json:
    queue: list[Json] = (await op.http.get("/internal/v1/queue")).json()["data"]
    return queue[0] if queue else {}


async def test_a_batch_has_an_eta_from_the_day_it_is_submitted(op: Operator) -> None:
    pod = op.lab.agent()
    await pod.ready()
    view = await op.put(lines=40)

    async def expected() -> bool:
        nonlocal view
        view = await op.get()
        return view["eta_at"] is not None

    await eventually(expected)  # by what a chunk is meant to be: nothing is committed yet
    assert view["predicted_miss"] is False
    assert (await queued(op))["eta_at"] is not None

    await op.lab.syncs_until(pod, lambda: bool(pod.held), room={**BIG_ROOM, "lines": 4})
    for lease in list(pod.held.values()):
        await pod.finish(lease)
    plane = op.lab.plane.services.database
    async with plane.transaction() as session:  # that took 100 s
        await session.execute(
            update(Chunk).where(Chunk.state == "done").values(leased_at=db_now() - 100)
        )
        await session.execute(update(ChunkResult).values(committed_at=db_now()))
    now_s = await plane.now_s()

    async def slow() -> bool:
        nonlocal view
        view = await op.get()
        return bool(view["eta_at"] > now_s + 500)

    await eventually(slow)
    assert view["eta_at"] == pytest.approx(now_s + 900, abs=60)  # nine more of them
    assert view["predicted_miss"] is False
    late = await op.put(lines=40, deadline_at=now_s + 300)
    assert late["predicted_miss"] is True

    async def counted() -> bool:
        text = (await op.http.get("/metrics")).text
        return "weir_batches_at_risk 1.0" in text

    await eventually(counted)
    text = (await op.http.get("/metrics")).text
    assert f'weir_batch_expected_end_timestamp_seconds{{batch="{view["batch_id"]}"}}' in text
    assert f'weir_batch_margin_seconds{{batch="{view["batch_id"]}"}} -' in text
    assert 'weir_model_offline_tokens_per_second{model="tiny"}' in text


async def test_of_a_chunk_that_took_hours_only_the_last_quarter_of_one_counts(op: Operator) -> None:
    """The rate is that of the last quarter of an hour: it did not do the whole chunk in it."""
    pod = op.lab.agent()
    await pod.ready()
    await op.put(lines=40)
    await op.lab.syncs_until(pod, lambda: bool(pod.held), room={**BIG_ROOM, "lines": 4})
    for lease in list(pod.held.values()):
        await pod.finish(lease)
    plane = op.lab.plane.services.database
    async with plane.transaction() as session:
        await session.execute(
            update(Chunk).where(Chunk.state == "done").values(leased_at=db_now() - 7200)
        )
        await session.execute(update(ChunkResult).values(committed_at=db_now()))
    expected_at = await plane.now_s() + 9 * 7200  # nine more of them

    async def slow() -> bool:
        eta_at = (await op.get())["eta_at"]
        return eta_at is not None and abs(eta_at - expected_at) < 6000

    await eventually(slow)


async def test_a_batch_of_one_service_is_expected_at_that_services_rate(op: Operator) -> None:
    """It was expected at the rate of all who serve its model: warned of when it was too late."""
    pods = [op.lab.agent(name, service=f"team-a/{name}") for name in ("fast", "slow")]
    told = [telemetry(offline_served_tokens=tokens, window_s=1.0) for tokens in (1000, 1)]
    no_room = {"lines": 0, "tokens": 0, "result_bytes": 0}
    for pod, item in zip(pods, told, strict=True):
        await pod.sync(telemetry=item, room=no_room)
    for name in ("fast", "slow"):
        await op.put(f"uid-{name}", lines=40, service=name)

    async def told_apart() -> bool:
        for pod, item in zip(pods, told, strict=True):
            await pod.sync(telemetry=item, room=no_room)
        now_s = await op.lab.plane.services.database.now_s()
        fast, slow = [(await op.get(f"uid-{name}"))["eta_at"] for name in ("fast", "slow")]
        return None not in {fast, slow} and fast < now_s + 60 and slow > now_s + 600

    await eventually(told_apart)
    assert await told_apart()


async def test_callers_are_answered_while_ends_are_reckoned(
    op: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tens of thousands of batches that takes seconds."""
    begun, answered = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def slow(batches: list[Remaining], pools: list[Pool]) -> dict[str, float]:
        begun.set()
        in_time.append(answered.wait(5))
        return seconds_to_end(batches, pools)

    async def is_begun() -> bool:
        return begun.is_set()

    async def is_over() -> bool:
        return bool(in_time)

    monkeypatch.setattr(keeper, "seconds_to_end", slow)
    await op.put(lines=4)
    await eventually(is_begun)
    await op.get()
    answered.set()
    await eventually(is_over)
    assert all(in_time)


async def test_without_a_pod_there_is_a_reason_and_no_eta(op: Operator) -> None:
    await op.put(lines=4)

    async def known() -> bool:
        return bool((await op.get())["waiting_reason"] == "NoMatchingModel")

    await eventually(known)
    view = await op.get()
    assert (view["eta_at"], view["predicted_miss"]) == (None, False)
    deadline_at = await op.lab.plane.services.database.now_s() + 0.001
    await op.put(lines=4, deadline_at=deadline_at)

    async def missed() -> bool:
        return bool((await op.get())["predicted_miss"])

    await eventually(missed)
    assert (await op.get())["eta_at"] is None


async def test_a_long_wait_brings_a_batch_a_chunk_and_not_its_end_forward(op: Operator) -> None:
    """It went before the others for its next chunk, and was expected to for all of them.

    Every five minutes it was on time, and right after its chunk at risk again. And a batch that no
    pod can take waits for ever: others were expected to wait for all of it.
    """
    pod = op.lab.agent()
    await pod.ready()
    batches = [(await op.put(uid, lines=40))["batch_id"] for uid in ("uid-1", "uid-2")]
    plane = op.lab.plane.services.database

    async def waits(**values: object) -> None:
        async with plane.transaction() as session:
            await session.execute(update(Batch).where(Batch.id == batches[1]).values(**values))

    async def ends(*uids: str) -> list[float]:
        found: list[float | None] = []

        async def known() -> bool:
            await pod.sync(room={"lines": 0, "tokens": 0, "result_bytes": 0})
            found[:] = [(await op.get(uid))["eta_at"] for uid in uids]
            return None not in found

        await eventually(known)
        return [at for at in found if at is not None]

    async def in_order() -> bool:
        first, second = await ends("uid-1", "uid-2")
        return first < second

    await eventually(in_order)
    alone_s = (await ends("uid-1"))[0] - await plane.now_s()
    await waits(in_progress_at=await plane.now_s() - 400)
    for _ in range(4):
        await asyncio.sleep(0.5)  # what is expected is worked out anew meanwhile
        assert await in_order()
    await waits(service="elsewhere", priority=5)

    async def waits_for_a_pod() -> bool:
        await pod.sync(room={"lines": 0, "tokens": 0, "result_bytes": 0})
        return (await op.get("uid-2"))["waiting_reason"] is not None

    await eventually(waits_for_a_pod)
    assert (await ends("uid-1"))[0] - await plane.now_s() < 1.5 * alone_s


async def test_where_online_requests_leave_no_room_a_batch_says_so(
    op: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pod that could take it has offline slots; the gauge is read as the dashboard does."""
    monkeypatch.setattr(registry, "CROWDED_S", 2.0)
    pod = op.lab.agent()
    crowded = telemetry(online_kv_blocks=1000)
    await pod.sync(telemetry=crowded)
    await op.put(lines=4)
    seen: list[str | None] = []

    async def shown() -> bool:
        assert (await pod.sync(telemetry=crowded))["chunks"] == []
        seen.append((await queued(op)).get("reason"))
        view, text = await op.get(), (await op.http.get("/metrics")).text
        return (
            seen[-1] == view["waiting_reason"] == "NoOfflineSlots"
            and view["eta_at"] is None
            and 'weir_batches_waiting{reason="NoOfflineSlots"} 1.0' in text
        )

    await eventually(shown)
    assert seen[0] is None  # a burst is no reason

    async def goes_on() -> bool:
        await pod.work()
        return bool((await op.get())["status"] == "completed")

    await eventually(goes_on)


async def test_what_pods_serve_counts_until_lines_are_committed(op: Operator) -> None:
    pod = op.lab.agent()
    told = telemetry(offline_served_tokens=1, window_s=1.0)
    await pod.sync(telemetry=told)
    await op.put(lines=40)

    async def slow() -> bool:
        await pod.sync(telemetry=told, room={"lines": 0, "tokens": 0, "result_bytes": 0})
        now_s = await op.lab.plane.services.database.now_s()
        return ((await op.get())["eta_at"] or 0.0) > now_s + 600  # at a token a second

    await eventually(slow)
    assert await slow()


async def test_a_batch_that_gets_nowhere_is_stuck(
    op: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lease counted as a move, though nothing was ever committed."""
    monkeypatch.setattr(standstill, "STUCK_S", 5.0)
    pod = op.lab.agent()
    await pod.ready()
    await op.put(lines=4)
    await op.lab.syncs_until(pod, lambda: bool(pod.held))
    assert (await queued(op))["stuck"] is False

    async def stuck() -> bool:
        for lease in list(pod.held.values()):
            pod.give_back(lease)
        await pod.sync()
        return bool((await queued(op)).get("stuck"))

    await eventually(stuck, within_s=60)
    text = (await op.http.get("/metrics")).text
    assert 'weir_batches_stuck{stage="running"} 1.0' in text


def test_time_adds_up_while_pods_come_and_go_until_something_is_committed() -> None:
    watch = standstill.Standstill()
    clock_s = 1000.0
    committed: dict[str, float] = {}

    def stuck(step_s: float = 60.0, **able: bool) -> set[str]:
        nonlocal clock_s
        clock_s += step_s
        return set(watch.stuck(able, committed, clock_s))

    for _ in range(15):
        assert stuck(a=True) == set()
        assert stuck(a=True) == set()
        assert stuck(a=False) == set()
    assert stuck(a=True) == set()
    assert stuck(a=True) == {"a"}
    assert stuck(a=False) == set()  # it has a reason to wait
    committed["a"] = 7.0
    assert stuck(a=True, b=True) == set()
    for _ in range(15):
        assert stuck(a=True) == set()  # b ended
    assert stuck(a=True, b=True) == {"a"}  # b is another's, or resumed: it begins anew
    assert stuck(9000.0, a=True, b=True) == {"a"}  # what was not seen does not count
    assert stuck(b=True) == set()


async def test_an_outage_leaves_no_metrics_of_batches_that_ended_in_it(
    op: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looked again did not know what had been shown: those series stayed for ever."""
    pod = op.lab.agent()
    await pod.ready()
    batch_id = (await op.put(lines=4))["batch_id"]
    looks = 0

    async def shown() -> bool:
        await pod.sync(room={"lines": 0, "tokens": 0, "result_bytes": 0})
        text = (await op.http.get("/metrics")).text
        return f'weir_batch_margin_seconds{{batch="{batch_id}"}}' in text

    async def fails(*_arguments: object) -> None:
        nonlocal looks
        looks += 1
        raise StorageError("away")

    async def failed() -> bool:
        return looks > 0

    async def gone() -> bool:
        return not await shown()

    await eventually(shown)
    with monkeypatch.context() as patched:
        patched.setattr(keeper, "read_work", fails)
        await eventually(failed)
        await op.http.post("/internal/v1/batchjobs/uid-1/cancel")
        await op.until("cancelled")
    await eventually(gone)
