"""Prometheus metrics of dispatch. Labels are ids, states and methods; never prompts or tenants."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from weir_controlplane.levels import Levels

LEASES = Counter("weir_leases_total", "Chunk leases, by what happened to them.", ["event"])
COMMITS = Counter("weir_commits_total", "Chunk commits, by the answer.", ["state"])
COMMITTED_LINES = Counter("weir_committed_lines_total", "Lines with a committed result.")
RESULT_BYTES = Counter("weir_result_upload_bytes_total", "Bytes of chunk results stored.")
DEATHS = Counter("weir_engine_deaths_total", "Engine deaths accepted.", ["kind", "suspects"])
POISONED_LINES = Counter("weir_poisoned_lines_total", "Lines failed for killing engines.")
SWEPT_UPLOADS = Counter("weir_uploads_swept_total", "Uncommitted uploads removed.")
CHUNKS = Gauge("weir_chunks", "Chunks of running batches, by state.", ["state"])
SUSPECT_CHUNKS = Gauge("weir_solo_chunks", "Chunks of suspects that wait or run alone.")
QUEUE_AGE = Gauge("weir_queue_age_seconds", "Age of the oldest batch with open chunks.")
WAITING = Gauge("weir_batches_waiting", "Running batches that get nothing, by reason.", ["reason"])
LEVELS = Levels(CHUNKS, SUSPECT_CHUNKS, QUEUE_AGE, WAITING)
LEASE_HOLDS = Counter("weir_lease_holds_total", "Outages after which no lease expired for a while.")
DISPATCH_SECONDS = Histogram(
    "weir_sync_transaction_seconds",
    "Duration of the database part of a sync.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
