"""What the demo shows: pure functions from a snapshot to a live panel or to one plain line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 48


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Online latency over the last seconds, in seconds; nan while there is nothing to measure."""

    ttft_p50_s: float
    ttft_p99_s: float
    tbt_mean_s: float
    tbt_p99_s: float


@dataclass(frozen=True, kw_only=True)
class KvLevel:
    """KV blocks of the engine: who holds them, and how many offline work may hold."""

    total_blocks: int
    online_blocks: int
    offline_blocks: int
    threshold_blocks: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One moment of the demo."""

    elapsed_s: float
    duration_s: float
    phase: str
    latency: Latency
    kv: KvLevel | None = None
    batch_status: str = ""
    lines_done: int = 0
    lines_failed: int = 0
    lines_total: int = 0
    offline_tokens_per_s: float = 0.0
    online_sent: int = 0


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """One row of the closing table."""

    name: str
    latency: Latency
    offline_tokens_per_s: float
    note: str = ""


def panel(snapshot: Snapshot) -> RenderableType:
    """The live view."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", min_width=10)
    rows.add_column()
    rows.add_row("time", _time_bar(snapshot))
    latency = snapshot.latency
    rows.add_row(
        "online",
        f"TTFT p50 {ms(latency.ttft_p50_s)}, p99 {ms(latency.ttft_p99_s)}; "
        f"{snapshot.online_sent} requests",
    )
    rows.add_row("", f"TBT mean {ms(latency.tbt_mean_s)}, p99 {ms(latency.tbt_p99_s)}")
    if snapshot.kv is not None:
        rows.add_row("KV blocks", kv_bar(snapshot.kv))
        rows.add_row("", _kv_words(snapshot.kv))
    if snapshot.lines_total:
        rows.add_row("batch", _share_bar(snapshot.lines_done / snapshot.lines_total, "blue"))
        rows.add_row("", _batch_words(snapshot))
    return Panel(Group(rows), title=f"weir demo · {snapshot.phase}", border_style="cyan")


def plain_line(snapshot: Snapshot) -> str:
    """The same facts for a log."""
    latency, kv = snapshot.latency, snapshot.kv
    parts = [
        f"[{snapshot.elapsed_s:5.1f} s] {snapshot.phase}",
        f"TTFT p50 {ms(latency.ttft_p50_s)} p99 {ms(latency.ttft_p99_s)}",
        f"TBT mean {ms(latency.tbt_mean_s)} p99 {ms(latency.tbt_p99_s)}",
    ]
    if kv is not None:
        parts.append(f"KV {_kv_words(kv)}")
    if snapshot.lines_total:
        parts.append(
            f"batch {snapshot.batch_status} {snapshot.lines_done}/{snapshot.lines_total} lines, "
            f"{snapshot.offline_tokens_per_s:,.0f} tokens/s"
        )
    return " | ".join(parts)


def kv_bar(kv: KvLevel) -> Text:
    """Online from the left, offline after it; the mark is where offline work must stop."""
    cells = [_cell(index, kv) for index in range(BAR_WIDTH)]
    mark = _width(kv.online_blocks + kv.threshold_blocks, kv.total_blocks)
    bar = Text()
    for index, (character, style) in enumerate(cells):
        bar.append("┃" if index == mark else character, "bold red" if index == mark else style)
    if mark >= BAR_WIDTH:
        bar.append("┃", "bold red")
    return bar


def _cell(index: int, kv: KvLevel) -> tuple[str, str]:
    if index < _width(kv.online_blocks, kv.total_blocks):
        return "█", "green"
    if index < _width(kv.online_blocks + kv.offline_blocks, kv.total_blocks):
        return "▓", "blue"
    return "░", "bright_black"


def _width(blocks: int, total_blocks: int) -> int:
    return min(BAR_WIDTH, round(BAR_WIDTH * blocks / max(1, total_blocks)))


def _kv_words(kv: KvLevel) -> str:
    return (
        f"online {kv.online_blocks}, offline {kv.offline_blocks} of at most "
        f"{kv.threshold_blocks}, total {kv.total_blocks}"
    )


def _time_bar(snapshot: Snapshot) -> Text:
    share = min(1.0, snapshot.elapsed_s / snapshot.duration_s) if snapshot.duration_s else 0.0
    words = f" {snapshot.elapsed_s:.0f} of {snapshot.duration_s:.0f} s"
    return _share_bar(share, "cyan").append(words)


def _batch_words(snapshot: Snapshot) -> str:
    failed = f", {snapshot.lines_failed} with errors" if snapshot.lines_failed else ""
    return (
        f"{snapshot.lines_done} of {snapshot.lines_total} lines{failed}, {snapshot.batch_status}, "
        f"{snapshot.offline_tokens_per_s:,.0f} tokens/s"
    )


def _share_bar(share: float, style: str) -> Text:
    filled = round(BAR_WIDTH * share)
    return Text.assemble(("█" * filled, style), ("░" * (BAR_WIDTH - filled), "bright_black"))


def closing_table(rows: Sequence[ArmRow], *, title: str) -> Table:
    """The comparison: online latency and offline throughput of each arm, on the same trace.

    On a narrow terminal words go on in the next row of their cell, and nothing is cut.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("arm", overflow="fold")
    for header in ("TTFT p50", "TTFT p99", "TBT mean", "TBT p99", "offline tokens/s"):
        table.add_column(header, justify="right", overflow="fold")
    table.add_column("note", overflow="fold")
    for row in rows:
        table.add_row(row.name, *_figures(row), row.note)
    return table


def closing_lines(rows: Sequence[ArmRow], *, title: str) -> list[str]:
    """The same comparison for a log."""
    headers = ("TTFT p50", "TTFT p99", "TBT mean", "TBT p99", "offline tokens/s")
    width = max(len(row.name) for row in rows)
    lines = [title, " ".join(["arm".ljust(width), *(header.rjust(16) for header in headers)])]
    for row in rows:
        figures = " ".join(figure.rjust(16) for figure in _figures(row))
        lines.append(f"{row.name.ljust(width)} {figures}  {row.note}".rstrip())
    return lines


def _figures(row: ArmRow) -> tuple[str, ...]:
    latency = row.latency
    return (
        ms(latency.ttft_p50_s),
        ms(latency.ttft_p99_s),
        ms(latency.tbt_mean_s),
        ms(latency.tbt_p99_s),
        f"{row.offline_tokens_per_s:,.0f}",
    )


def ms(seconds: float) -> str:
    """Milliseconds in words."""
    return "–" if isnan(seconds) else f"{seconds * 1000:,.0f} ms"
