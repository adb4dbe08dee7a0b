"""BROS's benchmark: workload, one run of an arm, and what the claims say of it."""

import json
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pytest

from benchmarks.papers.bros import run
from benchmarks.papers.bros_report import claims_of, notes_of
from benchmarks.papers.bros_run import SLOS, Outcome, Setup, shorter, simulate
from benchmarks.papers.bros_studies import MAIN, MORE, STUDIES, Rates
from benchmarks.papers.bros_workload import LONGEST_TOKENS, Sets, documents, online_of
from benchmarks.papers.paper import Options
from tests.benchmarks.test_papers import csv_gz
from weir_engine.config import Metric

ARMS = (*MAIN, *MORE)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder like the one that --data names, a few rows."""
    rows = [(40 + 7 * (i % 9), 20 + i % 11) for i in range(50)] + [(5000, 5000)]
    csv_gz(tmp_path / "lengths/sharegpt_predicted.csv.gz", ("input_tokens", "output_tokens"), rows)
    return tmp_path


def setup_of(data: Path) -> Setup:
    return Setup(
        profile="a100-40gb-opt-13b-tp2",
        data=data,
        rate_s=2.0,
        window_s=6.0,
        seed=1,
        kv_tokens=4_096,
    )


class TestWorkload:
    def test_online_requests_fit_into_the_models_context(self, data: Path) -> None:
        made = online_of(data, rate_s=20.0, seconds=20.0, seed=1)
        assert 300 < len(made) < 500
        totals = [spec.prompt_tokens + spec.output_tokens for spec in made]
        assert max(totals) == LONGEST_TOKENS
        assert made == online_of(data, rate_s=20.0, seconds=20.0, seed=1)

    def test_a_set_comes_whole_when_the_last_one_has_ended(self) -> None:
        sets = Sets(size=3, seed=1)
        first = sets.take(now_s=0.0, unfinished=0)
        assert tuple(first) == documents(3, 1)
        assert sets.take(now_s=1.0, unfinished=1) == []
        second = sets.take(now_s=2.0, unfinished=0)
        assert tuple(first + second) == documents(6, 1)
        for spec in documents(200, 2):
            assert 512 <= spec.prompt_tokens <= 1024
            assert 32 <= spec.output_tokens <= 128


class TestRuns:
    @pytest.mark.parametrize("arm", ARMS)
    def test_every_arm_answers_every_online_request(self, data: Path, arm: str) -> None:
        outcome = simulate(setup_of(data), arm)
        assert outcome.unanswered == 0
        assert outcome.latency_s > 0.01
        assert 0.0 <= outcome.ttft <= 1.0

    def test_shared_blocks_are_copied_instead_of_computed_again(self, data: Path) -> None:
        busy = replace(setup_of(data), rate_s=20.0, window_s=3.0)
        paged, shared = (simulate(busy, arm) for arm in ("BROS, paged", "BROS"))
        assert paged.preemptions > shared.preemptions
        assert shared.copied_tokens > paged.copied_tokens == 0

    def test_weir_copies_too_where_blocks_have_two_ends(self, data: Path) -> None:
        busy = replace(setup_of(data), rate_s=20.0, window_s=3.0)
        paged, shared = (simulate(busy, arm) for arm in ("weir, paged", "weir"))
        assert paged.preemptions > shared.preemptions
        assert shared.copied_tokens > paged.copied_tokens == 0

    def test_objectives_are_the_papers(self) -> None:
        assert {slo.metric: slo.threshold_s for slo in SLOS} == {
            Metric.TTFT: 0.4,
            Metric.TPOT: 0.2,
        }

    def test_a_quick_run_is_shorter(self, data: Path) -> None:
        assert shorter(setup_of(data)).window_s == 1.5


def outcome(latency_s: float, offline_s: float, share: float) -> Outcome:
    return Outcome(
        latency_s=latency_s,
        ttft=share,
        tpot=share,
        offline_s=offline_s,
        offline_tokens_s=800 * offline_s,
        unanswered=0,
        preemptions=0,
        copied_tokens=0,
        step_s=0.05,
    )


class TestFinishedParts:
    def test_a_seed_without_one_of_its_runs_is_left_out_and_named(self, tmp_path: Path) -> None:
        study = STUDIES[2]
        for seed, arms in ((1, study.arms), (2, study.arms[:1])):
            for rate_s, arm in product(study.rates_s, arms):
                found = outcome(0.05 * seed, 3.9, 0.9)
                path = tmp_path / f"bros/{study.name}-{rate_s:g}-{seed}-{arm}.json"
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(asdict(found)))
        options = Options(
            data=tmp_path, only=(study.name,), resume=tmp_path, finished_only=True, seeds=(1, 2)
        )
        result = run(options)
        assert result.notes == ("**opt-13b, 1 min: not measured:** seeds 2.",)
        assert {claim.value for claim in result.claims} == {0.0}
        assert len(result.tables) == len(study.rates_s)


class TestClaims:
    def rates(self) -> Rates:
        arms = {
            "vLLM": outcome(0.2, 4.0, 0.1),
            "round robin": outcome(0.1, 2.0, 0.4),
            "BROS": outcome(0.05, 3.9, 0.9),
            "weir": outcome(0.04, 3.9, 0.95),
            "vLLM, prompts first": outcome(0.3, 4.0, 0.1),
            "BROS, paged": outcome(0.06, 3.0, 0.8),
            "weir, paged": outcome(0.04, 3.5, 0.95),
            "weir, TPOT alone": outcome(0.05, 4.5, 0.8),
            "weir, prompts alone": outcome(0.03, 3.0, 0.96),
            "weir, no room kept": outcome(0.05, 4.1, 0.85),
        }
        return {rate_s: dict(arms) for rate_s in STUDIES[0].rates_s}

    def test_headlines_compare_with_the_better_vllm_and_round_robin(self) -> None:
        claims = {claim.id: claim for claim in claims_of(STUDIES[0], [self.rates()])}
        assert claims["bros/latency"].value == pytest.approx(0.75)
        assert claims["bros/latency"].met is True
        assert claims["bros/offline"].value == pytest.approx(0.025)
        assert claims["bros/latency-rr"].value == pytest.approx(0.5)
        assert claims["bros/latency-rr"].met is False
        assert claims["bros/latency-largest"].value == pytest.approx(0.75)
        assert claims["bros/tpot"].met is True
        assert claims["bros/tpot-rr"].met is None
        assert claims["weir/bros/latency"].value == pytest.approx(0.2)
        assert claims["weir/bros/ttft"].value == pytest.approx(0.05)
        assert claims["weir/bros/paged/latency"].value == pytest.approx(1 / 3)
        assert claims["weir/bros/paged/offline"].value == pytest.approx(-1 / 6)
        assert claims["weir/bros/paged/ttft"].value == pytest.approx(0.15)

    def test_the_note_gives_each_rate(self) -> None:
        note, why, reason = notes_of(STUDIES[0], [self.rates()])
        assert "8/s 75.0% at +2.5%" in note
        assert "steps of 50 ms" in why
        assert "Weir 3.90 offline requests a second at 95.0% of TTFT" in reason
        assert "BROS 3.00 offline requests a second at 80.0% of TTFT, Weir 3.50" in reason
        assert "as alone as others 3.00 offline requests a second at 96.0%" in reason

    def test_other_profiles_have_no_targets_of_the_papers(self) -> None:
        study = STUDIES[1]
        rates = {rate_s: next(iter(self.rates().values())) for rate_s in study.rates_s}
        claims = [c for c in claims_of(study, [rates]) if c.id.startswith("bros/")]
        assert claims
        assert all(claim.target is None for claim in claims)

    def test_a_minute_compares_weir_with_bros_alone(self) -> None:
        study = STUDIES[2]
        arms = {"BROS": outcome(0.05, 3.9, 0.9), "weir": outcome(0.04, 3.9, 0.95)}
        rates = {rate_s: dict(arms) for rate_s in study.rates_s}
        claims = {claim.id: claim for claim in claims_of(study, [rates])}
        assert claims.keys() == {
            f"weir/bros/opt-13b-1-min/{name}" for name in ("latency", "offline", "ttft", "tpot")
        }
        assert claims["weir/bros/opt-13b-1-min/latency"].met is True
        assert notes_of(study, [rates]) == []
