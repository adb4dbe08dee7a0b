"""What the demo shows, drawn from snapshots."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from rich.console import Console, RenderableType

from weir_cli.demo.view import (
    BAR_WIDTH,
    ArmRow,
    KvLevel,
    Latency,
    Snapshot,
    closing_lines,
    closing_table,
    kv_bar,
    panel,
    plain_line,
)

LATENCY = Latency(ttft_p50_s=0.0654, ttft_p99_s=0.477, tbt_mean_s=0.022, tbt_p99_s=nan)
KV = KvLevel(total_blocks=480, online_blocks=120, offline_blocks=120, threshold_blocks=240)
SNAPSHOT = Snapshot(
    elapsed_s=15.0,
    duration_s=60.0,
    phase="Weir",
    latency=LATENCY,
    kv=KV,
    batch_status="in_progress",
    lines_done=150,
    lines_failed=2,
    lines_total=600,
    offline_tokens_per_s=12_345.6,
    online_sent=22,
)


def drawn(renderable: RenderableType, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_the_panel_shows_latency_level_and_progress() -> None:
    text = drawn(panel(SNAPSHOT))
    for shown in (
        "Weir",
        "TTFT p50 65 ms, p99 477 ms; 22 requests",
        "TBT mean 22 ms, p99 –",
        "online 120, offline 120 of at most 240, total 480",
        "150 of 600 lines, 2 with errors, in_progress, 12,346 tokens/s",
        "15 of 60 s",
    ):
        assert shown in text


def test_the_panel_does_without_what_is_not_known() -> None:
    text = drawn(panel(replace(SNAPSHOT, kv=None, lines_total=0)))
    assert "KV" not in text
    assert "batch" not in text


def test_the_bar_stacks_online_offline_and_marks_the_threshold() -> None:
    bar = kv_bar(KV).plain
    quarter = BAR_WIDTH // 4
    assert bar == "█" * quarter + "▓" * quarter + "░" * quarter + "┃" + "░" * (quarter - 1)


def test_a_threshold_beyond_the_total_is_marked_at_the_end() -> None:
    bar = kv_bar(replace(KV, online_blocks=480, offline_blocks=0)).plain
    assert bar == "█" * BAR_WIDTH + "┃"


def test_a_plain_line_says_the_same() -> None:
    assert plain_line(SNAPSHOT) == (
        "[ 15.0 s] Weir | TTFT p50 65 ms p99 477 ms | TBT mean 22 ms p99 – | "
        "KV online 120, offline 120 of at most 240, total 480 | "
        "batch in_progress 150/600 lines, 12,346 tokens/s"
    )


def test_the_closing_table_has_a_row_for_each_arm() -> None:
    rows = [
        ArmRow(name="online alone", latency=LATENCY, offline_tokens_per_s=0),
        ArmRow(name="Weir", latency=LATENCY, offline_tokens_per_s=9876, note="SLO held"),
    ]
    text = drawn(closing_table(rows, title="The same trace"), width=120)
    plain = "\n".join(closing_lines(rows, title="The same trace"))
    for shown in ("The same trace", "online alone", "Weir", "9,876", "477 ms", "SLO held"):
        assert shown in text
        assert shown in plain


@pytest.mark.parametrize("width", [80, 50])
def test_the_closing_table_cuts_nothing_on_a_narrow_terminal(width: int) -> None:
    name, note = "stock vLLM, policy=priority", "objective missed: 1.43 times"
    row = ArmRow(name=name, latency=LATENCY, offline_tokens_per_s=987_654, note=note)
    assert "…" not in drawn(closing_table([row], title="The same trace"), width=width)
