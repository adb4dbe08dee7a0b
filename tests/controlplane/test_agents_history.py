"""What is kept of the fleet's past, and who sees it (design.md §8.13)."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import func, select

from tests.controlplane.agent_sim import telemetry
from tests.controlplane.jobs import lab
from tests.controlplane.support import make_settings, running
from weir_controlplane.agents import metrics
from weir_controlplane.agents.history import DemandLog
from weir_controlplane.agents.metrics import PodGauges
from weir_controlplane.agents.pods import PodPolicies
from weir_controlplane.agents.registry import AgentEntry
from weir_controlplane.agents.schemas import Telemetry
from weir_controlplane.forecast.demand import BUCKET_S
from weir_controlplane.forecast.methods import default_methods
from weir_controlplane.forecast.series import DAYS_S, RECENT_S
from weir_controlplane.policy.decide import PolicyLimits
from weir_controlplane.store.database import Database
from weir_controlplane.store.fleet_models import (
    KvDemand,
)


async def test_a_pods_past_outlives_the_control_plane(tmp_path: Path) -> None:
    """History is in the database: another process forecasts from it (§8.13)."""
    settings = make_settings(tmp_path)
    async with running(settings) as plane:
        now_s = await plane.services.database.now_s()
        log = DemandLog()
        for back_s in range(3600, 0, -BUCKET_S):
            log.record("pod-0", now_s - back_s, 400 + (back_s // BUCKET_S) % 2 * 100)
        assert await log.flush(plane.services.database) > 300
    async with running(settings) as plane, lab(plane) as desk:
        agent = desk.agent()
        await agent.sync(telemetry=telemetry(online_kv_blocks=450))
        policy = agent.last["policy"]
        # Peaks of 500: the quantile covers them and wastes less than mean and deviation (550).
        assert policy["forecast"] == {"method": "quantile", "online_kv_blocks": 500}
        assert policy["offline_kv_blocks"] == 500


async def test_rule_13_replicas_add_to_one_history(database: Database) -> None:
    """§8.13: two replicas that saw half of the samples each write what one would have."""
    one, two = DemandLog(), DemandLog()
    now_s = await database.now_s()
    at_s = now_s // BUCKET_S * BUCKET_S
    await one.load(database, "pod-0", now_s)
    for second in range(10):
        (one if second % 2 else two).record("pod-0", at_s + second, 10 * second)
    await one.flush(database)
    await two.flush(database)
    async with database.read() as session:
        statement = select(KvDemand).where(KvDemand.length_s == BUCKET_S)
        row = (await session.execute(statement)).scalar_one()
    assert (row.samples, row.sum_blocks, row.max_blocks) == (10, 450.0, 90)
    assert row.sum_sq_blocks == sum((10.0 * second) ** 2 for second in range(10))
    await one.read_others(database, now_s)
    pod = one.pod("pod-0")
    assert pod is not None
    assert pod.history().recent.samples[-1] == 10
    one.record("pod-0", at_s + 9, 1)  # not written yet when the other's is read
    two.record("pod-0", at_s + 9, 1)
    await two.flush(database)
    await one.read_others(database, now_s)
    pod = one.pod("pod-0")
    assert pod is not None
    assert pod.history().recent.samples[-1] == 12


async def test_rule_13_days_seen_by_another_replica_count(database: Database) -> None:
    """§8.13: a pod's syncs come here, then to the other replica for a day, and here again."""
    one, two = DemandLog(), DemandLog()
    now_s = await database.now_s()
    await one.load(database, "pod-0", now_s)
    one.record("pod-0", now_s, 10)
    await one.flush(database)
    for hours in range(1, 24):
        two.record("pod-0", now_s + 3600 * hours, 10)
        await two.flush(database)
        one.record("pod-0", now_s + 3600 * hours, 20)  # not written yet
        await one.read_others(database, now_s + 3600 * hours + BUCKET_S)
    pod = one.pod("pod-0")
    assert pod is not None
    assert pod.history().days.samples.tolist() == [1] + [2] * 23
    assert pod.history().days.sum_blocks.tolist() == [10] + [30] * 23


async def test_a_clock_that_is_set_back_stops_no_forecast(database: Database) -> None:
    """A server whose hardware clock is that of a time zone begins some hours ahead."""
    log = DemandLog()
    policies = PodPolicies(log, methods=default_methods(), limits=PolicyLimits())
    entry = AgentEntry(agent_id="pod-0", service="svc")
    entry.telemetry = Telemetry(total_blocks=1000)
    now_s = await database.now_s()

    def forecasts(log: DemandLog, begin_s: float, end_s: float, blocks: int) -> int | None:
        for at_s in range(int(begin_s), int(end_s), BUCKET_S):
            log.record("pod-0", at_s, blocks)
            policies.decide(entry, at_s)
        return None if entry.forecast is None else entry.forecast.online_kv_blocks

    await log.load(database, "pod-0", now_s)
    assert forecasts(log, now_s + 5 * 3600, now_s + 8 * 3600, 100) == 100
    await log.flush(database)
    assert forecasts(log, now_s, now_s + 600, 600) == 600
    await log.flush(database)
    again = DemandLog()
    await again.load(database, "pod-0", now_s + 600)
    pod = again.pod("pod-0")
    assert pod is not None
    assert set(pod.history().recent.max_blocks) == {600}
    await log.trim(database, now_s + 600)
    async with database.read() as session:
        last = await session.execute(select(func.max(KvDemand.start_s)))
        assert last.scalar_one() <= now_s + 600


async def test_scores_of_a_pod_are_shown_by_whom_it_syncs_with() -> None:
    """Those that it left behind at another replica hid that its forecast had become bad."""
    shown = {"service": "svc", "agent": "pod-0", "method": "quantile"}
    entry = AgentEntry(agent_id="pod-0", service="svc")
    gauges = PodGauges()
    metrics.COVERAGE.labels(**shown).set(1.0)
    entry.local = True
    await gauges.update([entry])
    assert REGISTRY.get_sample_value("weir_forecast_coverage_ratio", shown) == 1.0
    entry.local = False
    await gauges.update([entry])
    assert REGISTRY.get_sample_value("weir_forecast_coverage_ratio", shown) is None
    await gauges.update([])


async def test_a_history_that_could_not_be_written_is_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir_controlplane.agents import history

    log = DemandLog()
    now_s = await database.now_s()
    log.record("pod-0", now_s, 5)

    async def away(*_arguments: object) -> None:
        raise ConnectionRefusedError

    with monkeypatch.context() as patch:
        patch.setattr(history, "_add", away)
        with pytest.raises(ConnectionRefusedError):
            await log.flush(database)
    log.record("pod-0", now_s, 7)
    await log.flush(database)
    async with database.read() as session:
        sums = select(func.sum(KvDemand.samples)).where(KvDemand.length_s == BUCKET_S)
        assert (await session.execute(sums)).scalar_one() == 2


async def test_a_long_outage_keeps_only_what_forecasts_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents go on syncing without the database: what they say must not fill the memory."""
    from weir_controlplane.agents import history

    log = DemandLog()
    now_s = await database.now_s()

    async def away(*_arguments: object) -> None:
        raise ConnectionRefusedError

    with monkeypatch.context() as patch:
        patch.setattr(history, "_add", away)
        for ago_s in range(3 * RECENT_S, 0, -BUCKET_S):
            log.record("pod-0", now_s - ago_s, 5)
            if ago_s % 600 == 0:
                with pytest.raises(ConnectionRefusedError):
                    await log.flush(database)
    log.record("pod-0", now_s, 7)
    written = await log.flush(database)
    assert written <= RECENT_S // BUCKET_S + 3 * RECENT_S // 600 + 600 // BUCKET_S + 5
    async with database.read() as session:
        recent = select(func.count()).where(
            KvDemand.length_s == BUCKET_S, KvDemand.start_s > now_s - RECENT_S + BUCKET_S
        )
        assert (await session.execute(recent)).scalar_one() >= RECENT_S // BUCKET_S - 1


async def test_the_history_is_trimmed_to_what_forecasts_read(database: Database) -> None:
    log = DemandLog()
    now_s = await database.now_s()
    for back_s in (0, RECENT_S / 2, RECENT_S + 60, DAYS_S / 2, DAYS_S + 7200):
        log.record("pod-0", now_s - back_s, 5)
    await log.flush(database)
    await log.trim(database, now_s)
    async with database.read() as session:
        counted = await session.execute(
            select(KvDemand.length_s, func.count()).group_by(KvDemand.length_s)
        )
        assert sorted((length, rows) for length, rows in counted) == [(10, 2), (600, 4)]
