"""Trace files: read strictly, every mistake named with its place; fitted to a small model."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from weir_cli.demo.trace import TraceRow, bundled_trace, fit, read_trace
from weir_cli.errors import CliError, ExitStatus

HEADER = b"arrival_s,input_tokens,output_tokens\n"
SPOILED = gzip.compress(HEADER + b"0,1,1\n", mtime=0)[:12] + b"\xff" * 40


def read(tmp_path: Path, content: bytes) -> list[TraceRow]:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    return read_trace(path)


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_trace_is_read_from_csv_and_gzip(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    content = HEADER + b"0.0,10,3\n\n1.5,20,4\n"
    assert read(tmp_path, compress(content)) == [
        TraceRow(arrival_s=0.0, input_tokens=10, output_tokens=3),
        TraceRow(arrival_s=1.5, input_tokens=20, output_tokens=4),
    ]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfuser,output_tokens,input_tokens, arrival_s\na,3,10,0.5\n"
    row = TraceRow(arrival_s=0.5, input_tokens=10, output_tokens=3)
    assert read(tmp_path, content) == [row]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "line 1: no column arrival_s, input_tokens, output_tokens"),
        (b"arrival_s,input\n1,2\n", "line 1: no column input_tokens, output_tokens"),
        (HEADER, "no requests in it"),
        (HEADER + b"0,1,1\n1,x,1\n", "line 3, column input_tokens: 'x' is not a number"),
        (HEADER + b"0,1,0\n", "line 2, column output_tokens: '0' is not a whole number ≥ 1"),
        (HEADER + b"0,1.5,1\n", "line 2, column input_tokens: '1.5' is not a whole number ≥ 1"),
        (HEADER + b"nan,1,1\n", "line 2, column arrival_s: 'nan' is not a number ≥ 0"),
        (HEADER + b"-1,1,1\n", "line 2, column arrival_s: '-1' is not a number ≥ 0"),
        (HEADER + b"5,1,1\n4,1,1\n", "line 3, column arrival_s: 4.0 comes after 5.0"),
        (HEADER + b"0,1\n", "line 2: 2 columns where the header has 3"),
        (HEADER + b"0,1,1\n\xff\n", "line 3: not UTF-8 text"),
        (b"\x1f\x8b broken", "broken gzip file"),
        (gzip.compress(HEADER + b"0,1,1\n", mtime=0)[:-9], "broken gzip file"),
        (SPOILED, "broken gzip file"),
    ],
)
def test_a_broken_trace_is_named_with_its_place_and_the_remedy(
    tmp_path: Path, content: bytes, said: str
) -> None:
    with pytest.raises(CliError) as caught:
        read(tmp_path, content)
    assert "trace.csv" in caught.value.message
    assert said in caught.value.message
    assert "arrival_s,input_tokens,output_tokens" in str(caught.value.remedy)
    assert caught.value.status == ExitStatus.USAGE


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"none\.csv: No such file"):
        read_trace(tmp_path / "none.csv")


def test_fitting_scales_time_and_clips_lengths() -> None:
    rows = [
        TraceRow(arrival_s=100 + 7.0 * i, input_tokens=i + 1, output_tokens=9) for i in range(9)
    ]
    fitted = fit(rows, rate_per_s=2, duration_s=3, max_input_tokens=4, max_output_tokens=5)
    assert [row.arrival_s for row in fitted] == pytest.approx([0, 0.5, 1.0, 1.5, 2.0, 2.5])
    assert [row.input_tokens for row in fitted] == [1, 2, 3, 4, 4, 4]
    assert {row.output_tokens for row in fitted} == {5}


def test_a_trace_that_arrives_all_at_once_stays_one_burst() -> None:
    rows = [TraceRow(arrival_s=3.0, input_tokens=1, output_tokens=1)] * 3
    fitted = fit(rows, rate_per_s=1, duration_s=10, max_input_tokens=9, max_output_tokens=9)
    assert [row.arrival_s for row in fitted] == [0.0, 0.0, 0.0]


def test_the_bundled_excerpt_is_ten_minutes_of_real_traffic() -> None:
    rows = bundled_trace()
    assert len(rows) == 2867
    assert 590 < rows[-1].arrival_s < 600
