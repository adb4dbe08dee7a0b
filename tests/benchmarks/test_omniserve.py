"""OmniServe's benchmark: what a run comes to, and how runs become claims. Figures are its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.papers.omniserve_cells import cells_of
from benchmarks.papers.omniserve_notes import notes_of
from benchmarks.papers.omniserve_outcomes import Outcomes, Seeds
from benchmarks.papers.omniserve_report import claims_of
from benchmarks.papers.omniserve_run import (
    ARMS,
    Outcome,
    lane_bound_s,
    simulate,
)
from benchmarks.papers.omniserve_workload import Setup, offline_of, online_of
from tests.benchmarks.test_papers import csv_gz

GOOD = Outcome(
    attainment=0.9,
    ttft=0.95,
    tpot=0.95,
    offline_s=100.0,
    decoded_s=2.0,
    cpu_s=1.0,
    online_s=500.0,
    finished=3,
    refused=0.0,
    step_s=0.2,
    error=0.01,
)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """A few seconds on the small profile, with lengths made up."""
    rows = [(60 + i, 20 + i % 7) for i in range(60)]
    csv_gz(tmp_path / "lengths/sharegpt_predicted.csv.gz", ("input_tokens", "output_tokens"), rows)
    return Setup(
        profile="rtx-pro-6000-llama-3.1-8b",
        data=tmp_path,
        rate_s=4.0,
        window_s=6.0,
        seed=1,
        ttft_s=1.0,
        tpot_s=0.05,
        remote=0,
        ramp_s=1.0,
    )


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_serves_online_requests_and_batch_work(setup: Setup, arm: str) -> None:
    found = simulate(setup, arm, 256)
    assert found.online_s > 0
    assert found.offline_s > 0
    assert 0 <= found.attainment <= min(found.ttft, found.tpot) <= 1


@pytest.mark.parametrize("arm", ["omniserve", "weir"])
def test_a_run_learns_nothing_from_the_one_before(setup: Setup, arm: str) -> None:
    shorter = replace(setup, window_s=3.0)
    assert simulate(shorter, arm, 256) == simulate(shorter, arm, 256)


def test_a_rate_that_changes_keeps_the_mean(setup: Setup) -> None:
    longer = replace(setup, window_s=2000.0)
    steady, changing = len(online_of(longer)), len(online_of(replace(longer, change_s=5.0)))
    assert changing == pytest.approx(steady, rel=0.15)


def test_batch_requests_have_the_published_means(setup: Setup) -> None:
    specs = offline_of(replace(setup, window_s=1000.0))
    prompts = [spec.prompt_tokens for spec in specs]
    assert len(specs) == pytest.approx(3043, rel=0.1)
    assert sum(prompts) / len(prompts) == pytest.approx(8952, rel=0.06)
    assert max(prompts) <= 12_000


def test_a_full_lane_gives_less_the_longer_its_steps() -> None:
    profile = "a100-80gb-pcie-llama-2-70b-tp4"
    assert lane_bound_s(profile, "longbench", 5, 0.1) == pytest.approx(
        2 * lane_bound_s(profile, "longbench", 5, 0.2)
    )


def made(*names: str) -> dict[str, Seeds]:
    """Outcomes of some cells, in which every arm did equally well."""
    arms = (*ARMS, "llumnix-like, untuned")
    return {name: [dict.fromkeys(arms, GOOD)] * 2 for name in names}


def test_claims_say_what_was_not_measured_and_count_it_as_missed() -> None:
    found = made("rate-3", "tpot-0.15", "overload", "overload-admission")
    claims = {claim.id: claim for claim in claims_of(Outcomes(found))}
    assert claims["omniserve/attainment-gain"].value == 1.0
    assert claims["omniserve/attainment-gain"].met is False
    assert claims["omniserve/attainment-lost"].met is True
    assert claims["omniserve/offline-gain/rtx"].value is None
    assert claims["omniserve/offline-gain/rtx"].met is False
    first, *_ = notes_of(Outcomes(found))
    assert first.startswith("**Not measured yet:")
    assert "rtx" in first
    assert "rate-3" not in first


def test_admission_is_not_compared_with_a_cell_that_was_not_measured() -> None:
    found = made("rate-3", "overload")
    claims = {claim.id: claim for claim in claims_of(Outcomes(found))}
    assert claims["omniserve/admission/none"].value == 0.9
    assert claims["omniserve/admission/throughput"].value is None


def test_a_ratio_to_a_baseline_that_serves_nothing_is_no_headline() -> None:
    found = made("rate-3", "tpot-0.15")
    idle = replace(GOOD, offline_s=0.1)
    found["rate-3"] = [{**seed, "neo-like": idle} for seed in found["rate-3"]]
    claims = {claim.id: claim for claim in claims_of(Outcomes(found))}
    assert claims["omniserve/largest-offline-gain"].value == 1.0


def test_with_every_cell_measured_nothing_is_outstanding() -> None:
    found = made(*(cell.name for cell in cells_of(Path())))
    assert not any("Not measured" in note for note in notes_of(Outcomes(found)))
    assert all(claim.value is not None for claim in claims_of(Outcomes(found)))
