"""The papers' benchmarks: what they keep, write and show. The figures are theirs to measure."""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.claims import Claim, read_results
from benchmarks.papers import echo, hygen
from benchmarks.papers.__main__ import available, main
from benchmarks.papers.page import page
from benchmarks.papers.paper import Options, PaperResult, Table, kept, parallel, spread, write
from weir_engine.config import Metric
from weir_engine.sim.report import Latencies


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
    def setup(self, data: Path) -> hygen.Setup:
        return hygen.Setup(
            profile="a100-40gb-llama-2-7b", data=data, rate_s=1.0, window_s=20.0, seed=1
        )

    def test_both_stretches_come_from_the_trace_at_the_rate(self, data: Path) -> None:
        setup = self.setup(data)
        first, second = (hygen.online_of(setup, judged=judged) for judged in (False, True))
        assert len(first) == len(second) == 35
        assert first != second
        assert all(0 <= spec.arrival_s < 35 for spec in first + second)

    def test_offline_work_flows_under_a_budget_and_more_under_a_larger_one(
        self, data: Path
    ) -> None:
        setup = self.setup(data)
        small = hygen.run_hygen(setup, 512, 0.03, judged=False)
        large = hygen.run_hygen(setup, 512, 0.10, judged=False)
        assert 0 < small.offline_s < large.offline_s

    def test_a_bisected_level_holds_the_cell_that_it_was_found_for(self, data: Path) -> None:
        setup = self.setup(data)
        alone = {512: hygen.run_sarathi(setup, 512, judged=False)}
        cell = hygen.CELLS[2]
        (found,) = hygen.profiled(setup, "hygen", 512, (cell,), alone)
        assert found is not None
        assert found.ratio <= 1
        again = hygen.run_hygen(setup, found.chunk, found.level, judged=False)
        assert hygen.verdict(again, hygen.slos_of(cell, alone), 512, found.level) == found

    def test_a_chunk_that_misses_without_offline_work_is_not_tried(self, data: Path) -> None:
        alone = {
            chunk: hygen.Measured(
                latencies=Latencies(ttft_s=(0.1,), tbt_s=(tbt_s,), tpot_s=(tbt_s,)),
                offline_s=0.0,
                online_s=1.0,
            )
            for chunk, tbt_s in ((256, 0.04), (2048, 0.09))
        }
        cell = (Metric.TBT, "p99", 0.05)
        assert hygen.best_chunk(cell, alone) == 256
        assert hygen.profiled(self.setup(data), "hygen", 2048, (cell,), alone) == [None]

    def test_claims_compare_with_hygen_star(self) -> None:
        def row(own: float, star: float) -> dict[str, hygen.Verdict]:
            made = {
                arm: hygen.Verdict(offline_s=own, whole_s=own + 100, ratio=1.0)
                for arm in ("hygen", "hygen-next", "weir", "aimd", "adaptive", "sarathi++")
            }
            return made | {"hygen*": hygen.Verdict(offline_s=star, whole_s=star + 100, ratio=1.0)}

        study = hygen.STUDIES[0]
        rows = [[row(60.0, 10.0), row(20.0, 10.0), *[row(30.0, 10.0)] * (len(study.cells) - 2)]]
        values = {claim.id: claim.value for claim in hygen.claims_of(study, rows)}
        assert values["hygen/offline-gain-largest"] == 6.0
        assert values["hygen/offline-gain-smallest"] == 2.0
        assert values["hygen/offline-gain-median"] == 3.0
        assert values["hygen/cells-held"] == 1.0
        assert hygen.notes_of(study, rows) == []


class TestEcho:
    def test_the_ablation_runs_and_selection_finds_the_families(self, data: Path) -> None:
        setup = echo.Setup(
            profile="a100-40gb-llama-3.1-8b",
            offline="loogle",
            data=data,
            rate_s=1.0,
            window_s=40.0,
            seed=1,
        )
        plain, selected = (echo.simulate(setup, arm, 2048) for arm in ("BS+E", "Echo"))
        assert selected.hit_rate > plain.hit_rate
        assert selected.offline_s > plain.offline_s
        assert selected.finished >= plain.finished

    def test_a_request_attains_when_every_token_is_in_time(self, data: Path) -> None:
        setup = echo.Setup(
            profile="a100-40gb-llama-3.1-8b",
            offline="sharegpt",
            data=data,
            rate_s=1.0,
            window_s=40.0,
            seed=1,
        )
        assert len(echo.offline_of(setup)) == 20
        assert echo.simulate(setup, "weir", 2048).attainment == 1.0


def test_the_command_knows_the_papers_that_are_there(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {"hygen", "echo"} <= set(available())
    # A part that no study has: nothing runs, nothing is written.
    assert main(["hygen", "--data", str(data), "--only", "nothing"]) == 0
    assert "written" not in capsys.readouterr().out
