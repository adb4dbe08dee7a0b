"""Prometheus metrics of expected ends: the same in every replica, so join by max or min."""

from __future__ import annotations

from prometheus_client import Gauge

from weir_controlplane.levels import Levels

AT_RISK = Gauge(
    "weir_batches_at_risk", "Running batches that are expected to miss their deadline, or have."
)
STUCK = Gauge(
    "weir_batches_stuck",
    "Batches that get nowhere, by stage: running without a commit for 15 minutes although a pod "
    "could take them, or tried in vain three times or without a move for 15 minutes (validating, "
    "finalizing, cancelling, expiring; running: its input is missing; intake: BatchJobs whose "
    "input cannot be read).",
    ["stage"],
)
END = Gauge(
    "weir_batch_expected_end_timestamp_seconds",
    "When a running batch is expected to end; the 100 with the least margin.",
    ["batch"],
)
MARGIN = Gauge(
    "weir_batch_margin_seconds",
    "From a running batch's expected end to its deadline, negative when it will miss it; the 100 "
    "with the least.",
    ["batch"],
)
RATE = Gauge(
    "weir_model_offline_tokens_per_second",
    "Estimated tokens a second at which a model's batches are done, as taken for their ends.",
    ["model"],
)
LEVELS = Levels(AT_RISK, STUCK, END, MARGIN, RATE)
