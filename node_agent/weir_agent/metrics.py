"""The agent's Prometheus metrics, prefix ``weir_``. Labels carry ids and classes, never prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCIES = {"ttft": "TTFT", "tbt": "TBT", "tpot": "TPOT, from the first token on,"}
_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)


class AgentMetrics:
    """All metrics of one agent, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._sums: dict[str, float] = {}
        self._of_requests()
        self._of_the_engine()
        self._of_its_policy()
        self._of_objectives()
        self._of_batch_work()

    def _of_requests(self) -> None:
        self.online_latency = {
            metric: Histogram(
                f"weir_online_{metric}_seconds",
                f"{name} of streamed online requests, measured where responses leave.",
                buckets=_SECONDS,
                registry=self.registry,
            )
            for metric, name in _LATENCIES.items()
        }
        self.offline_line = Histogram(
            "weir_offline_line_seconds",
            "Time from an offline line's entry into the engine to its answer.",
            buckets=(0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600),
            registry=self.registry,
        )
        self.requests = self._gauge(
            "engine_requests", "Requests in the engine, by class and state.", "class", "state"
        )

    def _of_the_engine(self) -> None:
        self.engine_up = self._gauge("engine_up", "1 while the engine computes.")
        self.engine_restarts = self._counter(
            "engine_restarts", "Restarts of the agent's child and its engine after a death."
        )
        self.kv_blocks = self._gauge("kv_blocks", "KV blocks in use, by class.", "class")
        self.kv_total = self._gauge("kv_total_blocks", "KV blocks of the engine.")
        self.tokens = self._counter(
            "tokens", "Tokens served, by class, and offline ones computed.", "class", "kind"
        )
        self.steps = self._counter("engine_steps", "Steps of the engine.")
        self.step_seconds = self._gauge(
            "engine_step_seconds", "Duration of a step over the last minute.", "statistic"
        )
        self.predictor_mape = self._gauge(
            "predictor_mape", "Mean relative error of predicted step times."
        )
        self.preemptions = self._counter("preemptions", "Offline requests preempted.")
        self.divergences = self._counter(
            "plan_divergences", "Steps in which the engine did not do what was planned."
        )

    def _of_its_policy(self) -> None:
        self.kv_threshold = self._gauge(
            "offline_kv_threshold_blocks", "KV blocks that offline work may hold."
        )
        self.slots = self._gauge("offline_seq_slots", "Offline requests that may run at once.")
        self.step_budget = self._gauge(
            "step_budget_seconds", "Step budget of the policy; 0: the engine decides."
        )
        self.policy_age = self._gauge(
            "policy_age_seconds", "Time since the control plane's last policy was asked for."
        )
        self.policy_source = self._gauge(
            "policy_source",
            "1 for the source that holds now; absent without a control plane.",
            "source",
        )

    def _of_objectives(self) -> None:
        self.slo_measured = self._gauge(
            "slo_measured_seconds",
            "What an SLO measures over the last minute; absent when nothing was measured.",
            "metric",
            "statistic",
        )
        self.slo_threshold = self._gauge(
            "slo_threshold_seconds", "What an SLO allows.", "metric", "statistic"
        )
        self.slo_attained = self._gauge(
            "slo_attained",
            "1 while an SLO holds over the last minute; absent when nothing was measured.",
            "metric",
            "statistic",
        )

    def _of_batch_work(self) -> None:
        self.spool_bytes = self._gauge("spool_bytes", "Stored results that are not accepted yet.")
        self.spool_reserved = self._gauge("spool_reserved_bytes", "Worst case of held chunks.")
        self.chunks = self._gauge("chunks_held", "Chunks leased to this agent.")
        self.lines = self._counter("offline_lines", "Offline lines by outcome.", "outcome")
        self.commits = self._counter("chunk_commits", "Commits of chunks by answer.", "state")
        self.syncs = self._counter("syncs", "Calls to the control plane by outcome.", "outcome")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"weir_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"weir_{name}", text, labels, registry=self.registry)

    def raise_to(self, counter: Counter, key: str, total: float) -> None:
        """Raises a counter by what a sum of the engine grew since it was last seen."""
        grown = total - self._sums.get(key, 0.0)
        self._sums[key] = total
        if grown > 0:
            counter.inc(grown)

    def engine_report(self, report: Mapping[str, float]) -> None:
        """Takes over the numbers of the scheduler's telemetry."""

        def number(name: str) -> float:
            return float(report.get(name, 0) or 0)

        self.kv_total.set(number("total_blocks"))
        self._take_sums(number)
        for name in ("online", "offline"):
            self.kv_blocks.labels(name).set(number(f"{name}_kv_blocks"))
            for state in ("running", "waiting"):
                self.requests.labels(name, state).set(number(f"{name}_{state}"))
        self.kv_blocks.labels("free").set(number("free_kv_blocks"))
        self.step_seconds.labels("mean").set(number("step_mean_s"))
        self.step_seconds.labels("p99").set(number("step_p99_s"))
        self.predictor_mape.set(number("predictor_mape"))

    def _take_sums(self, number: Callable[[str], float]) -> None:
        for key, counter in (
            ("online_tokens", self.tokens.labels("online", "served")),
            ("offline_served_tokens", self.tokens.labels("offline", "served")),
            ("offline_computed_tokens", self.tokens.labels("offline", "computed")),
            ("steps", self.steps),
            ("preemptions", self.preemptions),
            ("divergences", self.divergences),
        ):
            self.raise_to(counter, key, number(key))
