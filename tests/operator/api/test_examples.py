"""`examples/`: what users copy does what it says."""

from __future__ import annotations

from pathlib import Path

import yaml

from weir_agent.metrics import AgentMetrics

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_the_autoscaler_scales_by_online_requests_alone() -> None:
    """Batch lines fill whatever room there is: by them a service would always be too small."""
    service = yaml.safe_load((EXAMPLES / "llmservice-autoscaled.yaml").read_text())
    (metric,) = (item["pods"]["metric"] for item in service["spec"]["autoscaling"]["metrics"])
    wanted = metric.get("selector", {}).get("matchLabels", {})
    metrics = AgentMetrics()
    for state, number in (("running", 3), ("waiting", 2)):
        metrics.requests.labels("online", state).set(number)
        metrics.requests.labels("offline", state).set(100)
    counted = sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == metric["name"] and wanted.items() <= sample.labels.items()
    )
    assert counted == 5
