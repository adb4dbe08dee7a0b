"""The operator's Prometheus metrics, prefix ``weir_operator_``."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from weir_operator.planning.kinds import BATCH_JOB, LLM_SERVICE

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class OperatorMetrics:
    """All metrics of one operator, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leader = self._gauge("leader", "1 while this replica leads.")
        self.watch_up = self._gauge("watch_up", "1 while the watches run.")
        self.synced = self._gauge("synced", "1 once every watched kind has been listed.")
        self.control_plane_up = self._gauge(
            "control_plane_up", "1 while the control plane answers; the leader alone asks."
        )
        self.objects = self._gauge("objects", "Objects seen, by kind.", "kind")
        self.queue_depth = self._gauge("queue_depth", "Objects that wait for a reconcile.")
        self.queue_delayed = self._gauge("queue_delayed", "Objects with a reconcile due later.")
        self.reconciles = self._counter(
            "reconciles", "Reconciles by kind and outcome.", "kind", "outcome"
        )
        self.reconcile_seconds = Histogram(
            "weir_operator_reconcile_seconds",
            "Duration of a reconcile.",
            ("kind",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.api_calls = self._counter(
            "api_calls", "Calls to the API server by method and answer.", "method", "answer"
        )
        self.writes = self._counter(
            "writes", "Writes done, by what was written and kind.", "what", "kind"
        )
        self.status_refused = self._counter(
            "status_refused", "Statuses that the API server refused, by kind.", "kind"
        )
        for kind in (LLM_SERVICE, BATCH_JOB):  # the first one counts: its alert looks at increases
            self.status_refused.labels(kind.kind)
        self.events = self._counter("events", "Events by outcome.", "outcome")
        self.control_plane_calls = self._counter(
            "control_plane_calls",
            "Calls to the control plane by call and outcome.",
            "call",
            "outcome",
        )
        self.resyncs = self._counter("resyncs", "Full lists of every kind, by outcome.", "outcome")
        self.orphans_cancelled = self._counter(
            "orphans_cancelled", "Batches cancelled because their BatchJob is gone."
        )
        self.releases = self._counter(
            "finalizers_released",
            "BatchJobs released after their batch was ended, by reason.",
            "reason",
        )

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"weir_operator_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"weir_operator_{name}", text, labels, registry=self.registry)
