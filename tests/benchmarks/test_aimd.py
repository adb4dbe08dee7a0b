"""The gateway baseline: additive increase while the SLO holds, multiplicative decrease when not."""

import time

import pytest

from benchmarks.colocation.runner import violated
from benchmarks.colocation.setup import SloTarget
from weir_cli.loadlab.aimd import AimdLimit
from weir_cli.loadlab.feeders import Target, feed_online
from weir_cli.loadlab.live import LiveLatency
from weir_cli.loadlab.records import RequestRecord
from weir_cli.loadlab.workload import OnlineRequest


def test_the_limit_rises_by_one_and_halves() -> None:
    limit = AimdLimit(most=4)
    assert [limit.update(violated=False) for _ in range(5)] == [2, 3, 4, 4, 4]
    assert [limit.update(violated=True) for _ in range(3)] == [2, 1, 0.5]


def test_latency_is_seen_while_requests_still_run() -> None:
    live = LiveLatency(window_s=10)
    observe = live.watch("a", 100.0)
    for at_s in (100.2, 100.3, 100.5):
        observe(at_s, 1)
    assert live.ttft(101).mean_s == pytest.approx(0.2)
    assert live.tbt(101).mean_s == pytest.approx(0.15)
    assert live.tbt(120).count == 0


def test_a_request_that_still_waits_counts_with_its_wait_so_far() -> None:
    live = LiveLatency(window_s=10)
    live.watch("stuck", 100.0)
    assert live.ttft(103).p99_s == pytest.approx(3.0)


async def test_a_request_that_failed_waits_no_more() -> None:
    """Else a live view shows its wait for ever, and a gateway never raises its limit again."""
    live = LiveLatency(window_s=10)
    failed = OnlineRequest(name="failed", at_s=0.0, prompt="words", max_tokens=4)
    records: list[RequestRecord] = []
    await feed_online(
        Target(host="127.0.0.1", port=1, model="m", extra={}),  # nobody listens there
        [failed],
        start_s=time.monotonic(),
        done=records.append,
        watch=live.watch,
    )
    assert records[0].error is not None
    assert live.ttft(time.monotonic()).count == 0


def test_no_samples_leave_the_limit_alone_and_a_missed_slo_lowers_it() -> None:
    live = LiveLatency(window_s=10)
    slo = SloTarget(metric="tbt", statistic="mean", threshold_s=0.1, reference_s=0.09)
    assert violated(live, [slo], 1.0) is None
    observe = live.watch("a", 0.0)
    observe(0.5, 1)
    observe(0.55, 1)
    assert violated(live, [slo], 1.0) is False
    observe(0.9, 1)
    assert violated(live, [slo], 1.0) is True


def test_a_cautious_gateway_stops_where_its_share_of_the_tolerance_is_used() -> None:
    live = LiveLatency(window_s=10)
    slo = SloTarget(metric="tbt", statistic="mean", threshold_s=0.15, reference_s=0.1)
    observe = live.watch("a", 0.0)
    for at_s in (0.5, 0.62, 0.74):
        observe(at_s, 1)
    assert violated(live, [slo], 1.0) is False
    assert violated(live, [slo], 1.0, aim=0.5) is False
    assert violated(live, [slo], 1.0, aim=0.25) is True
