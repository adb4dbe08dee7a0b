"""Result files keep one schema, and `met` follows from value and target alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims import (
    RESULTS,
    Claim,
    ClaimError,
    main,
    met,
    read_results,
    render,
    write_results,
)
from benchmarks.summary import readme


def claim(**changes: object) -> Claim:
    given: dict[str, Any] = {"id": "plan/p99", "what": "time of plan()", "unit": "ms", "value": 0.8}
    return Claim(**(given | {"target": "<= 1"} | changes))


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (1.0, ">= 1", True),
        (0.999, ">= 1", False),
        (1.0, "<= 1", True),
        (1.01, "<= 1.0", False),
        (0, "== 0", True),
        (3, "== 0", False),
        (None, ">= 1", False),
        (5.0, None, None),
    ],
)
def test_met_follows_from_value_and_target(
    value: float | None, target: str | None, expected: bool | None
) -> None:
    assert met(value, target) is expected


@pytest.mark.parametrize(
    "wrong",
    [{"id": "no slash"}, {"target": "at least 1"}, {"value": float("nan")}, {"low": float("inf")}],
)
def test_a_claim_that_breaks_the_schema_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ClaimError):
        claim(**wrong)


def test_results_survive_writing_and_reading(tmp_path: Path) -> None:
    claims = [claim(), claim(id="plan/p99-50000", value=None)]
    path = write_results("plan", claims, command="make bench", seeds=[1], folder=tmp_path)
    assert read_results(path) == claims
    assert {"machine", "commit", "command", "seeds", "claims"} <= set(json.loads(path.read_text()))


def test_a_met_that_was_edited_by_hand_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_results("plan", [claim(value=2)], command="c", seeds=[], folder=tmp_path)
    path.write_text(path.read_text().replace('"met": false', '"met": true'))
    assert main(["--results", str(tmp_path)]) == 1
    assert "plan/p99" in capsys.readouterr().err


def test_one_id_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClaimError, match="plan/p99"):
        write_results("plan", [claim(), claim()], command="c", seeds=[], folder=tmp_path)


def test_the_unmet_come_first() -> None:
    text = render([claim(), claim(id="plan/late", value=9), claim(id="plan/info", target=None)])
    assert [line.split()[1] for line in text.splitlines()] == ["plan/late", "plan/p99", "plan/info"]


def test_every_stored_result_file_keeps_the_schema() -> None:
    stored = {path.name: read_results(path) for path in RESULTS.glob("*.json")}
    assert stored["colocation.json"]
    assert all(stored.values()), "a result file without a claim says nothing"


def test_the_readme_counts_what_the_papers_pages_miss_too(tmp_path: Path) -> None:
    """The other page holds all but the papers' claims: counted alone, all would seem to be met."""
    write_results("plan_latency", [claim()], command="c", seeds=[1], folder=tmp_path)
    missed = [claim(id="hygen/a"), claim(id="hygen/b", value=3.0)]
    write_results("hygen", missed, command="c", seeds=[1], folder=tmp_path)
    text = readme(tmp_path)
    assert "1 of the 1 claims that have a target meet it: [all of them](docs/results.md)." in text
    assert "Weir's beside them, 1 of 2 do: [hygen](docs/papers/hygen.md)." in text
