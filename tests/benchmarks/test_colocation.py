"""What a co-location run is made of: costs, pace, servers, order, a folder of its own."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.colocation.arms import ONLINE_ONLY, WEIR, Run, all_arms
from benchmarks.colocation.bench import AgentZygote, Bench
from benchmarks.colocation.calibrate import StepCost, fit
from benchmarks.colocation.cells import all_cells
from benchmarks.colocation.gpu import GPU
from benchmarks.colocation.order import interleaved
from benchmarks.colocation.pace import (
    MOST_BUSY,
    ONLINE_SHARES,
    pace_at,
    pace_for,
    paced_window,
    paced_workload,
    share,
    tokens_per_s,
)
from benchmarks.colocation.run_folder import load_origin, other_window, save_origin, save_run
from benchmarks.colocation.servers import Servers
from benchmarks.colocation.setup import (
    BLOCK_TOKENS,
    CPU,
    PRESSURE,
    TRACE,
    WORKLOADS,
    EngineSetup,
    Host,
    Workload,
    engine_args,
)
from benchmarks.machine import describe_machine
from tests.benchmarks.measured import measurement
from weir_cli.loadlab.control_setup import (
    StubPolicy,
    StubSetup,
    setup_from_json,
    setup_to_json,
)
from weir_cli.loadlab.control_stub import ControlStub
from weir_cli.loadlab.measure import Window
from weir_cli.loadlab.processes import available_cores
from weir_cli.loadlab.workload import online_requests


def test_calibration_finds_the_costs_that_made_its_samples() -> None:
    costs = np.array([0.005, 1e-4, 2e-7, 2e-4, 1e-6, 0.012])
    source = np.random.default_rng(0)
    rows = source.uniform(0, 1, (40, 6)) * np.array([0, 1500, 1e6, 16, 2e4, 1])
    rows[:, 0] = 1.0
    cost = fit(rows, rows @ costs)
    assert cost.c0_s == pytest.approx(0.005, rel=1e-6)
    assert cost.decode_us(1500) == pytest.approx(1_700, rel=1e-6)
    assert cost.error_share == pytest.approx(0, abs=1e-9)


SLOW = StepCost(
    c0_s=0.007,
    prefill_s=8e-4,
    prefill_context_s=4e-7,
    decode_s=7e-4,
    decode_context_s=1.3e-6,
    http_s=0.0,
    error_share=0.0,
)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_on_a_slow_machine_the_same_requests_come_further_apart(workload: Workload) -> None:
    slower = paced_workload(workload, 2.0)
    before = online_requests(workload.online, seed=3, duration_s=200)
    after = online_requests(slower.online, seed=3, duration_s=400)
    assert len(before) > 100
    assert [(one.prompt, one.max_tokens) for one in before] == [
        (one.prompt, one.max_tokens) for one in after
    ]
    assert [2 * one.at_s for one in before] == pytest.approx([one.at_s for one in after])
    assert slower.lead_s == 2 * workload.lead_s


def test_each_machine_is_about_as_busy_with_online_traffic_as_any() -> None:
    fast = dataclasses.replace(SLOW, c0_s=0.003, prefill_s=1e-4, decode_s=1e-4)
    between = dataclasses.replace(SLOW, prefill_s=2.2e-4, decode_s=3e-4)
    least, most = ONLINE_SHARES
    for cost, wanted in ((SLOW, most), (fast, least)):
        paced = paced_workload(TRACE, pace_for(cost)).online
        assert share(cost, paced) == pytest.approx(wanted, rel=0.05)
    assert share(fast, TRACE.online) < least < share(between, TRACE.online) < most
    assert most < share(SLOW, TRACE.online)
    assert pace_for(between) == 1.0


def test_a_machine_whose_steps_cost_much_is_not_kept_busy_by_online_traffic_alone() -> None:
    """Costs of a Xeon without bfloat16, on which online-only took 90 to 92% at a pace of 1.38."""
    xeon = dataclasses.replace(
        SLOW,
        c0_s=0.0201,
        prefill_s=4.88e-4,
        prefill_context_s=3.65e-7,
        decode_s=5.1e-4,
        decode_context_s=2.09e-6,
    )
    work, tokens = share(xeon, TRACE.online), tokens_per_s(TRACE.online)
    assert work / 1.38 == pytest.approx(0.4, rel=0.01)
    wanted = pace_at(MOST_BUSY, c0_s=xeon.c0_s, work=work, tokens=tokens)
    assert pace_for(xeon) == wanted > 1.38


@pytest.mark.parametrize(
    ("c0_s", "work", "pace", "measured"),
    [
        (0.00365, 0.333, 0.54, (0.70, 0.75)),
        (0.00689, 0.379, 1.0, (0.69, 0.73)),
        (0.00500, 0.190, 1.0, (0.51, 0.58)),
        (0.00306, 0.211, 1.0, (0.42, 0.47)),
        (0.00798, 0.450, 1.58, (0.68, 0.69)),
        (0.0201, 0.400, 1.38, (0.90, 0.92)),
    ],
)
def test_how_busy_online_traffic_alone_keeps_a_machine_is_as_was_measured(
    c0_s: float, work: float, pace: float, measured: tuple[float, float]
) -> None:
    """c0, u, pace and online-only's busy shares of passes that `benchmarks/history.md` tells of."""
    least, most = measured
    tokens = tokens_per_s(TRACE.online)
    closest, widest = (
        pace_at(busy, c0_s=c0_s, work=work * pace, tokens=tokens)
        for busy in (most + 0.05, least - 0.05)
    )
    assert closest < pace < widest


def test_a_window_stretches_on_slow_machines_but_for_what_it_waits_in_the_end() -> None:
    window = Window(ramp_s=6.0, measure_s=25.0, tail_s=40.0)
    assert paced_window(window, 1.5) == Window(ramp_s=9.0, measure_s=37.5, tail_s=40.0)
    assert paced_window(window, 0.5) == window
    assert paced_workload(TRACE, 0.5).lead_s == TRACE.lead_s


def bench_in(folder: Path) -> Bench:
    return Bench(
        model=folder,
        folder=folder,
        cores=available_cores(),
        window=Window(ramp_s=6.0, measure_s=25.0, tail_s=40.0),
        seed=1,
        say=print,
        agents=AgentZygote(),
    )


def test_runs_of_another_pace_are_not_mixed_into_a_folder(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    run = Run(workload="trace", arm=ONLINE_ONLY, cell=None, repeat=0)
    assert other_window(bench.at(1.5), [run]) is None
    save_run(bench.at(1.5), run, measurement(), {})
    assert other_window(bench.at(1.5), [run]) is None
    told = other_window(bench, [run])
    assert told is not None
    assert "trace.online-only.any.r0 has 9.0 + 37.5 + 40.0 s at pace 1.50" in told
    save_run(bench.at(0.5), run, measurement(), {})
    told = other_window(bench, [run])
    assert told is not None
    assert "at pace 0.50, this command 6.0 + 25.0 + 40.0 s at pace 1.00" in told


@pytest.mark.parametrize(("repeats", "cells"), [(1, 3), (2, 3), (3, 20), (10, 20), (13, 1)])
def test_online_only_runs_before_between_and_after_the_others(repeats: int, cells: int) -> None:
    base = [Run(workload="trace", arm=ONLINE_ONLY, cell=None, repeat=n) for n in range(repeats)]
    others = [Run(workload="trace", arm=WEIR, cell=c, repeat=0) for c in all_cells()[:cells]]
    groups = interleaved(base, others)
    order = [run for group in groups for run in group]
    assert [run for run in order if run in base] == base
    assert [run for run in order if run in others] == others
    assert len(order) == repeats + cells
    assert order[: min(repeats, 2)] == base[:2]
    assert (order[-1] in base) == (repeats > 2)
    assert all(len(group) <= -(-cells // max(1, repeats - 2)) for group in groups[1:])


def test_runs_have_names_of_their_own() -> None:
    cells = [*all_cells(), None]
    runs = [Run(workload="trace", arm=arm, cell=c, repeat=0) for arm in all_arms() for c in cells]
    assert len({run.key for run in runs}) == len(runs)


@pytest.mark.parametrize("host", [CPU, GPU], ids=lambda host: host.name)
def test_arms_share_every_engine_setting_but_the_step(host: Host, tmp_path: Path) -> None:
    base = engine_args(tmp_path, EngineSetup(), host)
    for arm in all_arms(host.static_tokens):
        args = engine_args(tmp_path, dataclasses.replace(arm.engine, slos=()), host)
        differing = {base[i - 1] for i, (a, b) in enumerate(zip(base, args, strict=True)) if a != b}
        assert differing <= {"--max-num-batched-tokens", "--max-num-seqs"}


@pytest.mark.parametrize("host", [CPU, GPU], ids=lambda host: host.name)
def test_the_longest_requests_of_a_host_fit_its_engine(host: Host) -> None:
    for workload in host.workloads.values():
        online, offline = workload.online, workload.offline
        longest = online.prompt.high * online.turns + online.output.high
        line = offline.document_tokens + offline.question.high + offline.output.high
        assert longest <= host.shape.max_length_tokens
        assert line <= host.shape.max_length_tokens
        assert 4 * line < 0.9 * host.blocks * BLOCK_TOKENS


def test_runs_that_need_the_same_stock_server_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    started: list[str] = []

    @asynccontextmanager
    async def server(
        _bench: Bench, setup: EngineSetup, _workload: str
    ) -> AsyncIterator[tuple[str, None]]:
        name = f"{setup.scheduler}-{setup.batched_tokens}-{len(started)}"
        started.append(name)
        running.append(name)
        yield name, None
        running.remove(name)

    monkeypatch.setattr("benchmarks.colocation.servers.running_server", server)

    async def use() -> None:
        servers = Servers()
        stock, small, agent = (
            EngineSetup(),
            EngineSetup(batched_tokens=48),
            EngineSetup(scheduler="weir"),
        )
        bench = bench_in(tmp_path)
        for setup in (stock, stock, small, agent, agent, stock):
            got, _ = await servers.get(bench, setup, "trace")
            assert running == [str(got)]
        await servers.stop()
        assert running == []

    asyncio.run(use())
    assert started == ["stock-None-0", "stock-48-1", "weir-None-2", "weir-None-3", "stock-None-4"]


def test_a_result_says_where_its_runs_were_made(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    assert load_origin(bench) == {}
    save_origin(bench)
    origin = load_origin(bench)
    assert origin["machine"]["cores"] == describe_machine()["cores"]
    (tmp_path / "origin.json").write_text('{"machine": {"cores": 1}, "commit": "earlier"}')
    save_origin(bench)  # of a later run in the same folder
    assert load_origin(bench) == {"machine": {"cores": 1}, "commit": "earlier"}


async def granted(*telemetry: dict[str, int], forecasts: bool) -> int:
    """KV blocks that the stand-in control plane grants after these syncs."""
    policy = StubPolicy(offline_kv_blocks=675, offline_seq_slots=64, forecasts=forecasts)
    setup = StubSetup(model="sample", shape=PRESSURE.offline, seed=1, policy=policy)
    app = ControlStub(setup_from_json(setup_to_json(setup))).app()
    blocks = []
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://stand-in"
    ) as client:
        for told in telemetry:
            body = {
                "state": "serving",
                "chunks": [],
                "room": {"lines": 0},
                "telemetry": {"total_blocks": 750, **told},
            }
            reply = await client.post("/internal/v1/agents/a/sync", json=body)
            blocks.append(int(reply.json()["policy"]["offline_kv_blocks"]))
    return blocks[-1]


async def test_the_stand_in_grants_what_a_control_plane_would() -> None:
    told = {"online_kv_blocks": 50, "online_reuse_blocks": 250}
    assert await granted(told, told, forecasts=True) == 450
    assert await granted({}, forecasts=True) == 675  # at most what it was given
    busy = [{"online_kv_blocks": 100}, {"online_kv_blocks": 300}]
    assert await granted(*busy, forecasts=True) == 750 - 400  # mean and two deviations
    assert await granted(told, forecasts=False) == 675
