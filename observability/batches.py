"""Batches: how far, how fast, what waits and why, what failed.

Every control-plane replica reads the same database, so their series are joined by max.
"""

from __future__ import annotations

from observability.fleet import RATE
from observability.panels import Board, Panel, Query

TOTAL = 'max by (batch) (weir_batch_lines{state="total"})'
DONE = 'sum by (batch) (max by (batch, state) (weir_batch_lines{state=~"completed|failed"}))'
DONE_PER_S = (
    "sum by (batch) (max by (batch, state) "
    '(deriv(weir_batch_lines{state=~"completed|failed"}[10m])))'
)
WINDOW_LEFT_S = "(max by (batch) (weir_batch_window_end_timestamp_seconds) - time())"

PROGRESS = (
    Panel(
        title="Progress",
        description="Share of a running batch's lines that have a result.",
        unit="percentunit",
        queries=[Query(expr=f"{DONE} / {TOTAL}", legend="{{batch}}")],
    ),
    Panel(
        title="Time to the end",
        description="Lines that are left by the rate of the last ten minutes, and what is left of "
        "the window.",
        unit="s",
        queries=[
            Query(expr=f"({TOTAL} - {DONE}) / ({DONE_PER_S} > 0)", legend="{{batch}} expected"),
            Query(expr=WINDOW_LEFT_S, legend="{{batch}} window"),
        ],
    ),
    Panel(
        title="Lines committed",
        description="Lines a second whose results are stored.",
        unit="ops",
        queries=[Query(expr=f"sum(rate(weir_committed_lines_total[{RATE}]))", legend="lines")],
    ),
    Panel(
        title="Time without progress",
        description="Since a running batch's last result; suspended batches are left out.",
        unit="s",
        queries=[Query(expr="max by (batch) (weir_batch_idle_seconds)", legend="{{batch}}")],
    ),
)
QUEUE = (
    Panel(
        title="Batches by status",
        description="Unfinished batches.",
        unit="short",
        queries=[Query(expr="max by (status) (weir_batches)", legend="{{status}}")],
    ),
    Panel(
        title="Queue age",
        description="Age of the oldest batch with chunks that nobody computes.",
        unit="s",
        queries=[Query(expr="max(weir_queue_age_seconds)", legend="oldest")],
    ),
    Panel(
        title="Chunks",
        description="Chunks of running batches, waiting and leased.",
        unit="short",
        queries=[Query(expr="max by (state) (weir_chunks)", legend="{{state}}")],
    ),
    Panel(
        title="Why batches wait",
        description="Running batches that get nothing, by reason.",
        unit="short",
        queries=[Query(expr="max by (reason) (weir_batches_waiting)", legend="{{reason}}")],
    ),
)
FAILURES = (
    Panel(
        title="Failed lines",
        description="Lines of running batches whose result is an error.",
        unit="short",
        queries=[
            Query(
                expr='max by (batch) (weir_batch_lines{state="failed"})',
                legend="{{batch}}",
            )
        ],
    ),
    Panel(
        title="Batches that ended",
        description="In the last hour, by how they ended.",
        unit="short",
        queries=[Query(expr="max by (status) (weir_batches_ended)", legend="{{status}}")],
    ),
    Panel(
        title="Commits",
        description="Results of chunks by the answer: accepted, stale (another attempt owns the "
        "chunk), gone (the batch is closed).",
        unit="ops",
        queries=[
            Query(expr=f"sum by (state) (rate(weir_commits_total[{RATE}]))", legend="{{state}}")
        ],
    ),
    Panel(
        title="Poisoned lines",
        description="Lines failed because engines died with them, in an hour.",
        unit="short",
        queries=[Query(expr="sum(increase(weir_poisoned_lines_total[1h]))", legend="lines")],
    ),
)

BOARD = Board(
    uid="weir-batches",
    title="Weir / Batches",
    description="Progress, expected end, queue and failures of batches.",
    variables={},
    rows={"Progress": PROGRESS, "Queue": QUEUE, "Failures": FAILURES},
)
