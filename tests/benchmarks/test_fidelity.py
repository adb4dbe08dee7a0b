"""The fidelity benchmark: both sides get the same load, and their figures mean the same."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.colocation.bench import AgentZygote
from benchmarks.colocation.setup import TRACE
from benchmarks.fidelity import replay
from benchmarks.fidelity.__main__ import Live, _claim, fitted_profile, judge
from benchmarks.fidelity.live import Lab
from benchmarks.fidelity.replay import Figures, of_live, simulated
from benchmarks.fidelity.traces import TRACES, FidelityTrace, offline_specs, online_specs
from weir_cli.loadlab.measure import Window
from weir_cli.loadlab.processes import Cores
from weir_cli.loadlab.workload import OfflineOrder, offline_supply
from weir_engine.config import EngineShape
from weir_engine.sim.hashes import BlockHasher
from weir_engine.sim.recorded import RecordedProfile
from weir_engine.sim.recorded_cost import RecordedCost
from weir_engine.sim.recorded_noise import NoiseOfSize, RecordedNoise

PROFILE = RecordedProfile(
    shape=EngineShape(
        block_size_tokens=32,
        total_blocks=749,
        max_batched_tokens=2048,
        max_seqs=64,
        max_model_len_tokens=4096,
    ),
    cost=RecordedCost(
        coefficients=(0.01, 1e-4, 1e-8, 1e-4, 1e-4, 1e-7, 0.0, 0.0),
        noise=RecordedNoise(sizes=(NoiseOfSize(upto_s=1.0, ratios=(1.0, 1.0)),), ranks=(0.5,)),
    ),
    pause_s=0.001,
    pause_request_s=0.0,
)


@pytest.mark.parametrize("trace", TRACES.values(), ids=lambda trace: trace.name)
def test_the_simulator_gets_the_requests_that_the_engine_gets(trace: FidelityTrace) -> None:
    live = trace.online()
    specs = online_specs(trace)
    assert len(specs) == len(live) > 20
    for spec, request in zip(specs, live, strict=True):
        assert (spec.id, spec.arrival_s) == (request.name, request.at_s)
        assert (spec.prompt_tokens, spec.output_tokens) == (len(request.prompt), request.max_tokens)


def test_batch_lines_come_in_the_stand_ins_order_and_share_their_documents() -> None:
    trace = TRACES["fitted"]
    specs = offline_specs(trace)
    supply = offline_supply(trace.workload.offline, seed=trace.seed, order=OfflineOrder.PREFIX)
    hasher = BlockHasher(32)
    first, second = (hasher.hashes(next(specs).segments) for _ in range(2))
    lines = [supply() for _ in range(2)]
    assert [len(first), len(second)] == [len(line.prompt) // 32 for line in lines]
    document = 1500 // 32
    assert first[:document] == second[:document]
    assert first[document:] != second[document:]
    assert next(offline_specs(replace(trace, colocated=False)), None) is None


def test_a_simulation_says_what_a_live_run_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "WINDOW", Window(ramp_s=2.0, measure_s=8.0, tail_s=5.0))
    trace = FidelityTrace(name="short", workload=TRACE, seed=5)
    found = simulated(PROFILE, trace, http_s=0.003, seed=1)
    alone = simulated(PROFILE, replace(trace, colocated=False), http_s=0.003, seed=1)
    assert found.offline_tokens_s > 1000 > alone.offline_tokens_s == 0
    assert alone.tokens_s > 100
    # A step is 11 ms and more; batch work beside it lengthens it up to the objective.
    assert 0.011 < alone.tpot_s < found.tpot_s < 0.13
    assert alone.ttft_s > 0.014


def test_deviations_are_in_percent_of_the_live_figure() -> None:
    statistics = {"mean_s": 0.2, "p99_s": 0.5}
    live = of_live(
        {
            "measurement": {
                "online_tokens_per_s": 100.0,
                "offline_served_per_s": 900.0,
                "steps_per_s": 20.0,
                "online": {"ttft": statistics, "tbt": statistics, "tpot": statistics},
            }
        }
    )
    assert live.tokens_s == 1000.0
    other = Figures(
        tokens_s=980.0,
        offline_tokens_s=880.0,
        steps_s=20.0,
        ttft_s=0.22,
        tpot_s=0.2,
        ttft_p99_s=0.5,
        tbt_p99_s=0.5,
    )
    assert other.off("tokens_s", live) == pytest.approx(-2.0)
    assert other.off("ttft_s", live) == pytest.approx(10.0)
    assert other.off("tpot_s", live) == 0


def _write_run(lab: Lab, trace: FidelityTrace, repeat: int, found: Figures) -> None:
    """The files of a live run: what it measured, and 40 equal steps."""
    latencies = {
        "ttft": {"mean_s": found.ttft_s, "p99_s": found.ttft_p99_s},
        "tpot": {"mean_s": found.tpot_s},
        "tbt": {"p99_s": found.tbt_p99_s},
    }
    measured = {
        "online_tokens_per_s": found.tokens_s - found.offline_tokens_s,
        "offline_served_per_s": found.offline_tokens_s,
        "steps_per_s": found.steps_s,
        "online": latencies,
    }
    content = {"measurement": measured, "http_s": 0.001 * repeat}
    lab.run_file(trace, repeat).write_text(json.dumps(content))
    step = {"prefills": [[100, 0]], "decodes": [50], "seconds": 0.0255, "pause_s": None}
    rows = [{"engine": asdict(PROFILE.shape)}, *[step] * 40]
    lab.step_file(trace, repeat).write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(
        model=tmp_path,
        folder=tmp_path,
        cores=Cores(engine=0, client=0),
        agents=AgentZygote(),
        say=lambda _: None,
    )


SHORT = FidelityTrace(name="short", workload=TRACE, seed=5)


def test_a_run_is_judged_from_its_files(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live engine that does what the simulator says is 0% off; its steps are read back."""
    monkeypatch.setattr(replay, "WINDOW", Window(ramp_s=2.0, measure_s=8.0, tail_s=5.0))
    found = simulated(PROFILE, SHORT, http_s=0.0, seed=1)
    _write_run(lab, SHORT, 1, found)
    live = Live.read(lab, SHORT, 1)
    claims = {claim.id: claim for claim in judge(SHORT, live, PROFILE, 0.0, [1])}
    assert claims["fidelity/short/throughput"].value == 0
    assert claims["fidelity/short/ttft"].met
    # 10 ms, 100 tokens of 0.1 ms, two requests of 0.1 ms and attention are 20.3 ms of 25.5.
    assert claims["fidelity/short/step"].value == pytest.approx(20.6, abs=0.5)
    assert not claims["fidelity/short/step"].met
    # One kind of step, always as long: a profile of the run itself knows it.
    assert claims["fidelity/short/own-step"].value == pytest.approx(0, abs=0.1)
    assert "fidelity/short/repeats/throughput" not in claims


def test_repeats_are_judged_by_their_mean_and_say_how_far_apart_they_are(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "WINDOW", Window(ramp_s=2.0, measure_s=8.0, tail_s=5.0))
    found = simulated(PROFILE, SHORT, http_s=0.0, seed=1)
    for repeat, factor in enumerate((0.9, 1.1), start=1):
        _write_run(lab, SHORT, repeat, replace(found, tpot_s=factor * found.tpot_s))
    live = Live.read(lab, SHORT, 2)
    claims = {claim.id: claim for claim in judge(SHORT, live, PROFILE, 0.0, [1])}
    assert claims["fidelity/short/tpot"].value == pytest.approx(0, abs=0.01)
    assert claims["fidelity/short/repeats/tpot"].value == pytest.approx(20)
    assert claims["fidelity/short/repeats/tpot"].met is None
    assert claims["fidelity/short/repeats/throughput"].value == 0


def test_the_spread_of_simulations_has_their_mean_in_it(lab: Lab) -> None:
    """Some are above the live figure and some below: the mean may be nearer than each of them."""
    found = Figures(
        tokens_s=100.0,
        offline_tokens_s=1.0,
        steps_s=1.0,
        ttft_s=1.0,
        tpot_s=1.0,
        ttft_p99_s=1.0,
        tbt_p99_s=1.0,
    )
    _write_run(lab, SHORT, 1, found)
    runs = [replace(found, tokens_s=tokens_s) for tokens_s in (96.0, 97.0, 104.0)]
    claim = _claim(SHORT, "tokens_s", runs, Live.read(lab, SHORT, 1))
    assert (claim.value, claim.low, claim.high) == (1.0, -4.0, 4.0)


def test_a_profile_is_made_of_all_runs_of_the_fitted_trace(lab: Lab) -> None:
    figures = Figures(
        tokens_s=1.0,
        offline_tokens_s=0.0,
        steps_s=1.0,
        ttft_s=1.0,
        tpot_s=1.0,
        ttft_p99_s=1.0,
        tbt_p99_s=1.0,
    )
    for repeat in (1, 2):
        _write_run(lab, SHORT, repeat, figures)
    profile, http_s = fitted_profile(Live.read(lab, SHORT, 2))
    assert len(profile.cost.noise.ranks) == 80
    assert http_s == pytest.approx(0.0015)
