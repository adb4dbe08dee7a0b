"""The papers' benchmarks: what they keep, write and show. The figures are theirs to measure."""

import csv
import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import engine_builds
from benchmarks.claims import Claim, read_results
from benchmarks.papers import echo, echo_run, hygen, hygen_judge, hygen_run
from benchmarks.papers.__main__ import available, main, run
from benchmarks.papers.ablation import AT_ONCE, NOTHING_KEPT, without
from benchmarks.papers.page import page
from benchmarks.papers.paper import Options, PaperResult, Table, kept, parallel, spread, write
from tests.engine.sched.full_batch import admitted_after_each_end, full
from weir_engine.config import Metric
from weir_engine.ids import RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.sim.baselines import GATEWAYS
from weir_engine.sim.records import RequestRecord, SimResult
from weir_engine.sim.report import Latencies
from weir_engine.sim.workload import online_from_rows


def csv_gz(path: Path, header: tuple[str, ...], rows: Sequence[tuple[float, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(header)
        writer.writerows(rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder like the one that --data names, a few rows each."""
    folder = tmp_path / "data"
    three = ("arrival_s", "input_tokens", "output_tokens")
    azure = [(0.5 * i, 200 + 7 * (i % 9), 20 + i % 5) for i in range(600)]
    csv_gz(folder / "azure2023/conv.csv.gz", three, azure)
    lengths = [(900 + i, 40 + i % 7) for i in range(900)]
    csv_gz(folder / "lengths/arxiv_summarization.csv.gz", three[1:], lengths)
    csv_gz(
        folder / "lengths/sharegpt_predicted.csv.gz", three[1:], [(60 + i, 30) for i in range(40)]
    )
    day = [(86.4 * i,) for i in range(1000)]
    csv_gz(folder / "servegen/m_large_day1_4rps.csv.gz", three[:1], day)
    documents = ("document_chars", "questions", "mean_answer_chars")
    csv_gz(folder / "lengths/loogle_documents.csv.gz", documents, [(8000, 6, 40), (9000, 1, 400)])
    return folder


def plus(number: int) -> int:
    return number + 1


class TestParts:
    def test_a_finished_part_is_not_run_again(self, tmp_path: Path) -> None:
        options = Options(data=tmp_path, resume=tmp_path / "kept")
        assert kept(options, "paper", "part/1", lambda: {"x": (1, 2)}) == {"x": [1, 2]}
        assert kept(options, "paper", "part/1", lambda: {"x": (3,)}) == {"x": [1, 2]}

    def test_what_is_not_there_is_left_out_when_nothing_is_to_be_run(self, tmp_path: Path) -> None:
        options = Options(data=tmp_path, resume=tmp_path / "kept")
        assert kept(options, "paper", "a", lambda: 1) == 1
        finished = replace(options, finished_only=True)
        assert kept(finished, "paper", "a", lambda: 2) == 1
        assert kept(finished, "paper", "b", lambda: 2) is None

    def test_without_a_folder_it_is_run_each_time(self, tmp_path: Path) -> None:
        assert kept(Options(data=tmp_path), "paper", "part", lambda: [1]) == [1]

    def test_processes_give_what_one_gives_in_order(self, tmp_path: Path) -> None:
        for jobs in (1, 2):
            assert parallel(Options(data=tmp_path, jobs=jobs), plus, [3, 1, 2]) == [4, 2, 3]

    def test_a_claim_carries_the_spread_of_its_seeds(self) -> None:
        claim = spread("hygen/x", "what", "times", [1.0, 2.0, 6.0], ">= 3")
        assert (claim.value, claim.low, claim.high, claim.met) == (3.0, 1.0, 6.0, True)
        assert spread("hygen/x", "what", "times", []).value is None


class TestPage:
    def result(self) -> PaperResult:
        return PaperResult(
            claims=(
                Claim(id="hygen/a", what="good", unit="times", value=2.0, target=">= 1"),
                Claim(id="hygen/b", what="bad", unit="times", value=0.5, target=">= 1"),
            ),
            notes=("Missed, because.",),
            tables=(Table(title="T", header=("arm", "x"), rows=(("weir", "7"),)),),
        )

    def test_what_was_not_reached_stands_first(self, tmp_path: Path) -> None:
        path = write("hygen", self.result(), Options(data=tmp_path), folder=tmp_path)
        assert [claim.id for claim in read_results(path)] == ["hygen/a", "hygen/b"]
        text = page("hygen", tmp_path)
        places = [text.index(word) for word in ("Missed, because.", "bad", "good", "**T**")]
        assert places == sorted(places)
        assert "| weir | 7 |" in text

    def test_a_paper_without_results_says_so(self, tmp_path: Path) -> None:
        assert page("hygen", tmp_path) == "Not measured yet.\n"


class TestHygen:
    def setup(self, data: Path) -> hygen_run.Setup:
        return hygen_run.Setup(
            profile="a100-40gb-llama-2-7b", data=data, rate_s=1.0, window_s=20.0, seed=1
        )

    def test_both_stretches_come_from_the_trace_at_the_rate(self, data: Path) -> None:
        setup = self.setup(data)
        first, second = (hygen_run.online_of(setup, judged=judged) for judged in (False, True))
        assert len(first) == len(second) == 35
        assert first != second
        assert all(0 <= spec.arrival_s < 35 for spec in first + second)

    def test_offline_work_flows_under_a_budget_and_more_under_a_larger_one(
        self, data: Path
    ) -> None:
        setup = self.setup(data)
        small = hygen_run.run_hygen(setup, 512, 0.03, judged=False)
        large = hygen_run.run_hygen(setup, 512, 0.10, judged=False)
        assert 0 < small.offline_s < large.offline_s

    def test_a_bisected_level_holds_the_cell_that_it_was_found_for(self, data: Path) -> None:
        setup = self.setup(data)
        alone = {512: hygen_run.run_sarathi(setup, 512, judged=False)}
        cell = hygen_judge.CELLS[2]
        (found,) = hygen_judge.profiled(setup, "hygen", 512, (cell,), alone)
        assert found is not None
        assert found.ratio <= 1
        again = hygen_run.run_hygen(setup, found.chunk, found.level, judged=False)
        assert (
            hygen_judge.verdict(again, hygen_judge.slos_of(cell, alone), 512, found.level) == found
        )

    def test_a_chunk_that_misses_without_offline_work_is_not_tried(self, data: Path) -> None:
        alone = {
            chunk: hygen_run.Measured(
                latencies=Latencies(ttft_s=(0.1,), tbt_s=(tbt_s,), tpot_s=(tbt_s,)),
                offline_s=0.0,
                online_s=1.0,
            )
            for chunk, tbt_s in ((256, 0.04), (2048, 0.09))
        }
        cell = (Metric.TBT, "p99", 0.05)
        assert hygen_judge.best_chunk(cell, alone) == 256
        assert hygen_judge.profiled(self.setup(data), "hygen", 2048, (cell,), alone) == [None]

    def test_the_gateway_that_serves_most_and_holds_stands_for_aimd(
        self, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        latencies = Latencies(ttft_s=(0.1,), tbt_s=(0.04,), tpot_s=(0.04,))
        alone = {512: hygen_run.Measured(latencies=latencies, offline_s=0.0, online_s=1.0)}
        cell = (Metric.TBT, "p99", 0.05)

        def served(slow: float, quick: float, *, quick_s: float) -> hygen_judge.Verdict:
            def run_aimd(*given: object) -> hygen_run.Measured:
                if given[-1] == GATEWAYS[0]:
                    return replace(alone[512], offline_s=slow)
                late = replace(latencies, tbt_s=(quick_s,))
                return replace(alone[512], offline_s=quick, latencies=late)

            monkeypatch.setattr(hygen_judge, "run_aimd", run_aimd)
            return hygen_judge._single(self.setup(data), "aimd", cell, alone)

        assert served(100.0, 160.0, quick_s=0.041).offline_s == 160.0
        assert served(100.0, 160.0, quick_s=0.05).offline_s == 100.0

    def test_claims_compare_with_hygen_star(self) -> None:
        def row(own: float, star: float) -> dict[str, hygen_judge.Verdict]:
            made = {
                arm: hygen_judge.Verdict(offline_s=own, whole_s=own + 100, ratio=1.0)
                for arm in hygen.STUDIES[0].arms
            }
            return made | {
                "hygen*": hygen_judge.Verdict(offline_s=star, whole_s=star + 100, ratio=1.0)
            }

        study = hygen.STUDIES[0]
        rows = [[row(60.0, 10.0), row(20.0, 10.0), *[row(30.0, 10.0)] * (len(study.cells) - 2)]]
        values = {claim.id: claim.value for claim in hygen.claims_of(study, rows)}
        assert values["hygen/offline-gain-largest"] == 6.0
        assert values["hygen/offline-gain-smallest"] == 2.0
        assert values["hygen/offline-gain-median"] == 3.0
        assert values["hygen/cells-held"] == 1.0
        assert hygen.notes_of(study, rows) == []

    def test_what_weir_serves_where_it_misses_is_no_gain(self) -> None:
        """Half as much where it holds, five times as much in one cell of two, which it misses."""

        def row(served: float, ratio: float) -> dict[str, hygen_judge.Verdict]:
            own = hygen_judge.Verdict(offline_s=served, whole_s=served, ratio=ratio)
            return {"weir": own, "hygen": replace(own, offline_s=10.0, ratio=1.0)}

        study = hygen.STUDIES[0]
        rows = [[row(50.0, 1.02), row(5.0, 1.0)] * (len(study.cells) // 2)]
        claims = {claim.id: claim for claim in hygen.claims_of(study, rows)}
        assert claims["weir/hygen/offline-gain-median"].value == 0.5
        assert claims["weir/hygen/offline-gain-median"].met is False
        assert claims["weir/hygen/cells-held"].value == 0.5

    def test_weir_with_nothing_kept_stands_beside_weir_and_has_no_target(self) -> None:
        def own(served: float) -> hygen_judge.Verdict:
            return hygen_judge.Verdict(offline_s=served, whole_s=served, ratio=1.0)

        study = hygen.STUDIES[0]
        row = {"weir": own(8.0), NOTHING_KEPT: own(12.0), "hygen": own(10.0)}
        claims = {claim.id: claim for claim in hygen.claims_of(study, [[row] * len(study.cells)])}
        kept, spent = (
            claims[f"weir/hygen/{part}offline-gain-smallest"] for part in ("", "nothing-kept/")
        )
        assert (kept.value, kept.met) == (0.8, False)
        assert (spent.value, spent.met) == (1.2, None)

    def test_what_hygen_cannot_miss_has_no_target(self) -> None:
        """Its budget is taken where it holds, else nothing runs; the next stretch can be missed."""
        assert hygen_judge.NOTHING.ratio <= 1
        study = hygen.STUDIES[0]
        missed = hygen_judge.Verdict(offline_s=1.0, whole_s=2.0, ratio=1.1)
        rows = [[{"hygen": hygen_judge.NOTHING, "hygen-next": missed}] * len(study.cells)]
        met = {claim.id: claim.met for claim in hygen.claims_of(study, rows)}
        assert met["hygen/cells-held"] is None
        assert met["hygen/cells-held-next"] is False

    def test_arms_that_were_not_run_are_named_and_their_claims_not_measured(self) -> None:
        study = hygen.STUDIES[0]
        own = hygen_judge.Verdict(offline_s=1.0, whole_s=2.0, ratio=1.1)
        rows = [[{"weir": own}] * len(study.cells)]
        values = {claim.id: claim.value for claim in hygen.claims_of(study, rows)}
        assert values["hygen/offline-gain-largest"] is None
        assert values["weir/hygen/cells-held"] == 0.0
        absent, missed = hygen.notes_of(study, rows)
        others = [arm for arm in study.arms if arm != "weir"]
        assert absent.endswith(f" not measured:** {'; '.join(others)}.")
        assert "mean TBT +5% by 10.0%" in missed
        place = study.arms.index("weir") + 1
        assert hygen.table_of(study, rows).rows[0][place - 1 : place + 2] == ("-", "[1] 1/1", "-")


class TestEcho:
    def test_the_ablation_runs_and_selection_finds_the_families(self, data: Path) -> None:
        setup = echo_run.Setup(
            profile="a100-40gb-llama-3.1-8b",
            offline="loogle",
            data=data,
            rate_s=1.0,
            window_s=40.0,
            seed=1,
        )
        plain, selected = (echo_run.simulate(setup, arm, 2048) for arm in ("BS+E", "Echo"))
        assert selected.hit_rate > plain.hit_rate
        assert selected.offline_s > plain.offline_s
        assert selected.finished >= plain.finished

    def test_arms_that_were_not_run_are_named_and_their_claims_not_measured(self) -> None:
        study = echo.STUDIES[0]
        own = echo_run.Outcome(
            offline_s=10.0,
            attainment=0.8,
            hit_rate=0.9,
            finished=1,
            preemptions=0,
            ttft_p90_s=0.1,
            tpot_p90_s=0.01,
        )
        seeds = [{"Echo": own, "weir": own}]
        values = {claim.id: claim.value for claim in echo.claims_of(study, seeds)}
        assert values["echo/offline-gain"] is None
        assert values["weir/echo/offline-gain"] == 1.0
        absent, missed = echo.notes_of(study, seeds)
        assert "BS, BS+E," in absent
        assert "Echo 80.0%, weir 80.0%" in missed
        rows = {row[0]: row[1] for row in echo.table_of(study, seeds).rows}
        assert (rows["Echo"], rows["BS"]) == ("10", "-")

    def test_a_request_attains_when_every_token_is_in_time(self, data: Path) -> None:
        setup = echo_run.Setup(
            profile="a100-40gb-llama-3.1-8b",
            offline="sharegpt",
            data=data,
            rate_s=1.0,
            window_s=40.0,
            seed=1,
        )
        assert len(echo_run.offline_of(setup)) == 20
        gathered, at_once = (echo_run.simulate(setup, arm, 2048) for arm in ("weir", AT_ONCE))
        assert gathered.attainment == at_once.attainment == 1.0
        assert gathered.finished == at_once.finished == 20

    def outcome(
        self, data: Path, monkeypatch: pytest.MonkeyPatch, tokens_s: Sequence[float]
    ) -> echo_run.Outcome:
        """Of a run with one online request, which arrives 25 s before the end and still answers."""
        setup = echo_run.Setup(
            profile="a100-40gb-llama-3.1-8b",
            offline="sharegpt",
            data=data,
            rate_s=1.0,
            window_s=100.0,
            seed=1,
        )
        (spec,) = online_from_rows([(75.0, 60, 600)])
        monkeypatch.setattr(echo_run, "online_of", lambda _: (spec,))
        answering = RequestRecord(
            id=RequestId("on-0"),
            arrival_s=spec.arrival_s,
            prompt_tokens=60,
            hit_tokens=0,
            tokens_s=tuple(spec.arrival_s + token_s for token_s in tokens_s),
            preemptions=0,
        )
        result = SimResult(
            steps=(),
            online=(),
            offline_finished=0,
            preemptions=0,
            ended_s=100.0,
            unfinished=(answering,),
        )
        kv = KvManager(total_blocks=64, block_size_tokens=16)
        return echo_run._outcome(setup, result, kv)

    def test_a_request_that_still_answers_in_time_at_the_end_attains(
        self, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As slow as it may be: 600 tokens take 30 s, and there are 25."""
        found = self.outcome(data, monkeypatch, [0.04 + 0.05 * i for i in range(500)])
        assert found.attainment == 1.0
        assert found.ttft_p90_s == pytest.approx(0.04)
        assert found.tpot_p90_s == pytest.approx(0.05)

    @pytest.mark.parametrize(
        "tokens_s",
        [
            pytest.param([max(0.05 * i, 1.1) for i in range(500)], id="late first tokens"),
            pytest.param([0.04 + 0.05 * i for i in range(479)], id="an overdue next token"),
            pytest.param([], id="no token"),
        ],
    )
    def test_one_that_is_late_at_the_end_does_not(
        self, data: Path, monkeypatch: pytest.MonkeyPatch, tokens_s: Sequence[float]
    ) -> None:
        assert self.outcome(data, monkeypatch, tokens_s).attainment == 0.0

    def test_an_arm_without_a_part_runs_interpreted_beside_a_compiled_engine(
        self, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A compiled run used to end here; what it comes to is what an interpreted one does."""
        study = echo.STUDIES[1]
        setup = echo_run.Setup(
            profile=study.profile,
            offline=study.offline,
            data=data,
            rate_s=1.0,
            window_s=10.0,
            seed=1,
        )
        cell = (Options(data=data), study, setup, AT_ONCE)
        found = echo_run.run_arm(cell)
        monkeypatch.setattr(engine_builds, "this_build", lambda: "compiled")
        assert echo_run.run_arm(cell) == found

    def test_without_gathering_a_prompt_takes_the_first_free_slot(self) -> None:
        with without(AT_ONCE):
            assert admitted_after_each_end(full()) == [1, 1, 1]
        assert admitted_after_each_end(full()) == [0, 0, 3]


@pytest.mark.parametrize("paper", ["hygen", "echo", "bros", "omniserve"])
def test_of_a_run_that_was_stopped_early_nothing_is_claimed(paper: str, tmp_path: Path) -> None:
    """`--finished` on a folder without parts: every claim is there, with no value and not met."""
    options = Options(data=tmp_path, resume=tmp_path / "kept", finished_only=True)
    result = run(paper, options)
    headlines = [claim for claim in result.claims if claim.target is not None]
    assert headlines
    assert not any(claim.met for claim in headlines)
    assert all(claim.value in {None, 0.0} for claim in result.claims)
    assert "not measured" in result.notes[0].lower()


def test_finished_parts_alone_need_their_folder(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["echo", "--data", str(data), "--finished"])
    assert "--resume" in capsys.readouterr().err


def test_the_command_knows_the_papers_that_are_there(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {"hygen", "echo"} <= set(available())
    # A part that no study has: nothing runs, nothing is written.
    assert main(["hygen", "--data", str(data), "--only", "nothing"]) == 0
    assert "written" not in capsys.readouterr().out
