"""Batches: how far, how fast, what waits and why, what failed.

Every control-plane replica reads the same database, so their series are joined by max.
"""

from __future__ import annotations

from observability.fleet import RATE
from observability.panels import Board, Panel, Query

TOTAL = 'max by (batch) (weir_batch_lines{state="total"})'
DONE = 'sum by (batch) (max by (batch, state) (weir_batch_lines{state=~"completed|failed"}))'
END_IN_S = "max by (batch) (weir_batch_expected_end_timestamp_seconds) - time()"
WINDOW_LEFT_S = "max by (batch) (weir_batch_window_end_timestamp_seconds) - time()"

PROGRESS = (
    Panel(
        title="Progress",
        description="Share of a running batch's lines that have a result.",
        unit="percentunit",
        queries=[Query(expr=f"{DONE} / {TOTAL}", legend="{{batch}}")],
    ),
    Panel(
        title="Time to the end",
        description="By the control plane's own prediction, and what is left of the window.",
        unit="s",
        queries=[
            Query(expr=END_IN_S, legend="{{batch}} expected"),
            Query(expr=WINDOW_LEFT_S, legend="{{batch}} window"),
        ],
    ),
    Panel(
        title="Margin",
        description="From the expected end to the deadline: the window's end, or a BatchJob's own. "
        "Below zero it will be missed.",
        unit="s",
        signed=True,
        queries=[Query(expr="min by (batch) (weir_batch_margin_seconds)", legend="{{batch}}")],
    ),
    Panel(
        title="Rate of each model",
        description="Estimated tokens a second at which its batches are done, as taken for their "
        "ends.",
        unit="tok/s",
        queries=[
            Query(expr="max by (model) (weir_model_offline_tokens_per_second)", legend="{{model}}")
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
    Panel(
        title="At risk, and stuck",
        description="Batches expected to miss their deadline, and batches that get nowhere "
        "although they could, by stage.",
        unit="short",
        queries=[
            Query(expr="max(weir_batches_at_risk)", legend="at risk"),
            Query(expr="max by (stage) (weir_batches_stuck)", legend="stuck {{stage}}"),
        ],
    ),
    Panel(
        title="Suspects",
        description="Chunks of lines that were in an engine when it died: they run alone.",
        unit="short",
        queries=[Query(expr="max(weir_solo_chunks)", legend="chunks")],
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
