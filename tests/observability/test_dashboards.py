"""Every panel and every alert, asked of a real Prometheus that scrapes a live Weir."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import httpx
import pytest

from observability.alerts import ALERTS
from observability.panels import Board
from scripts.generate_chart import BOARDS, CHART
from tests.observability.conftest import UNSERVED, Live, database_of, growing, seed_demand
from tests.support.batches import as_jsonl, line
from tests.support.processes import tail
from tests.support.prometheus import PrometheusServer
from tests.support.stack import MODEL
from tests.support.waiting import eventually
from weir_agent.metrics import AgentMetrics
from weir_engine.config import Metric
from weir_operator.metrics import OperatorMetrics

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
WITHIN_S = 200.0
OUTAGE = {"WeirControlPlaneGone", "WeirPolicyLeaseStale"}
CROWDS = (96, 192, 384, 768)
"""Requests at once: six times what the engine has slots for, and more for a fast machine."""
CROWD_TOKENS = 256


def queries() -> Iterator[tuple[str, str]]:
    """Every expression of every panel as Grafana sends it, with where it stands."""
    for name, board in BOARDS.items():
        for panel in board.panels:
            for number, query in enumerate(panel.queries):
                expr = query.expr.replace("$__rate_interval", "20s").replace("$service", ".*")
                yield f"{name} / {panel.title} / {number}", expr


def known_metrics() -> set[str]:
    """Every metric of Weir: the documentation's, which a test holds to the code, and operator's."""
    names = set(re.findall(r"^\| `(weir_[a-z_]+)` \|", OPERATIONS.read_text(), re.MULTILINE))
    for family in OperatorMetrics().registry.collect():
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return names | {f"{name}_{part}" for name in names for part in ("bucket", "sum", "count")}


def has_data(prometheus: PrometheusServer, expr: str) -> bool:
    return any(math.isfinite(float(item["value"][1])) for item in prometheus.query(expr))


@pytest.mark.system
@pytest.mark.vllm
def test_every_panel_shows_data(live: Live) -> None:
    missing = dict(queries())
    until_s = time.monotonic() + WITHIN_S
    while missing and time.monotonic() < until_s:
        missing = {k: v for k, v in missing.items() if not has_data(live.prometheus, v)}
        time.sleep(1)
    assert missing == {}, tail(live.stack.controlplane.log)


@pytest.mark.system
@pytest.mark.vllm
def test_every_variable_has_values(live: Live) -> None:
    for board in BOARDS.values():
        for name, query in board.variables.items():
            match = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
            assert match, name
            found = live.prometheus.query(f"count by ({match[2]}) ({match[1]})")
            assert [item["metric"][match[2]] for item in found] == ["default"]


def looked_at() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Every series that an alert looks at, whatever it compares it with, and by which labels."""
    for alert in ALERTS:
        groups = re.findall(r"by \(([^)]*)\)", alert.expr)
        labels = frozenset(name.strip() for group in groups for name in group.split(","))
        for selector in set(re.findall(r"\b(?:weir_\w+|up)\b(?:\{[^}]*\})?", alert.expr)):
            yield alert.name, selector, labels


@pytest.mark.system
@pytest.mark.vllm
def test_every_alert_looks_at_series_that_are_there(live: Live) -> None:
    """An alert is silent when all is well; its series are there even so, with its labels."""
    found = list(looked_at())
    assert {name for name, _, _ in found} == {alert.name for alert in ALERTS}
    missing = {(name, selector) for name, selector, _ in found}
    until_s = time.monotonic() + WITHIN_S
    while missing and time.monotonic() < until_s:
        for name, selector, labels in found:
            counted = live.prometheus.query(f"count by ({', '.join(labels)}) ({selector})")
            if any(set(item["metric"]) == labels for item in counted):
                missing.discard((name, selector))
        time.sleep(1)
    assert missing == set(), tail(live.stack.controlplane.log)


@pytest.fixture(scope="module")
def calm(live: Live) -> Live:
    """Nothing is asked of the batch any more: it would only keep the machine busy."""
    live.stack.client().batches.cancel(live.batch)
    return live


@pytest.mark.system
@pytest.mark.vllm
def test_a_batch_that_nobody_serves_fires_its_alerts(calm: Live) -> None:
    """It can run nowhere, and its window is shorter than its work."""
    expected = {"WeirBatchesWait", "WeirBatchAtRisk"}
    assert eventually(lambda: not expected & calm.prometheus.firing(), within_s=WITHIN_S)
    lines = [line(f"line-{n}", model=UNSERVED, max_tokens=1000) for n in range(1000)]
    client = calm.stack.client("elsewhere")
    file = client.files.create(file=("in.jsonl", as_jsonl(lines)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/completions",
        completion_window="300s",  # type: ignore[arg-type]
    )
    assert eventually(lambda: expected <= calm.prometheus.firing(), within_s=WITHIN_S)
    client.batches.cancel(batch.id)
    assert eventually(lambda: not expected & calm.prometheus.firing(), within_s=WITHIN_S)


@pytest.mark.system
@pytest.mark.vllm
def test_a_batch_whose_input_cannot_be_read_fires_its_alert(calm: Live) -> None:
    assert eventually(lambda: "WeirBatchStuck" not in calm.prometheus.firing(), within_s=WITHIN_S)
    client = calm.stack.client("unlucky")
    file = client.files.create(file=("in.jsonl", as_jsonl([line("a")])), purpose="batch")
    (stored,) = (calm.stack.folder / "controlplane" / "files").rglob(file.id)
    stored.unlink()
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    assert eventually(lambda: "WeirBatchStuck" in calm.prometheus.firing(), within_s=WITHIN_S)
    client.batches.cancel(batch.id)
    assert eventually(lambda: "WeirBatchStuck" not in calm.prometheus.firing(), within_s=WITHIN_S)


@pytest.mark.system
@pytest.mark.vllm
def test_an_operator_that_does_not_lead_fires_its_alert(calm: Live) -> None:
    name = "WeirOperatorWithoutLeader"
    assert eventually(lambda: name not in calm.prometheus.firing(), within_s=WITHIN_S)
    calm.operator.leader.set(0)
    assert eventually(lambda: name in calm.prometheus.firing(), within_s=WITHIN_S)
    calm.operator.leader.set(1)
    assert eventually(lambda: name not in calm.prometheus.firing(), within_s=WITHIN_S)


@pytest.mark.system
@pytest.mark.vllm
def test_an_engine_that_dies_fires_its_alert(calm: Live) -> None:
    assert eventually(lambda: "WeirEngineDown" not in calm.prometheus.firing(), within_s=WITHIN_S)

    def fires() -> bool:
        calm.stack.kill_engine()  # whenever it is back: one start can pass between two scrapes
        return "WeirEngineDown" in calm.prometheus.firing()

    assert eventually(fires, within_s=WITHIN_S, every_s=1.0)
    calm.stack.agent.wait_ready()
    assert eventually(lambda: "WeirEngineDown" not in calm.prometheus.firing(), within_s=WITHIN_S)


async def ask_at_once(url: str, crowd: int) -> None:
    """As many streamed requests as make the last of them wait; each is read to its end."""
    body = {"model": MODEL, "prompt": "once", "max_tokens": CROWD_TOKENS, "ignore_eos": True}
    limits = httpx.Limits(max_connections=crowd)
    async with httpx.AsyncClient(timeout=WITHIN_S, limits=limits, trust_env=False) as client:

        async def ask() -> None:
            async with client.stream(
                "POST", f"{url}/v1/completions", json={**body, "stream": True}
            ) as answer:
                async for _ in answer.aiter_bytes():
                    pass

        await asyncio.gather(*(ask() for _ in range(crowd)))


@pytest.fixture(scope="module")
def outage(calm: Live) -> Live:
    """The control plane is gone until a test starts it."""
    assert eventually(lambda: not OUTAGE & calm.prometheus.firing(), within_s=WITHIN_S)
    calm.stack.controlplane.kill()
    return calm


@pytest.mark.system
@pytest.mark.vllm
def test_more_requests_than_slots_fire_both_burn_rates(outage: Live) -> None:
    """Their first tokens come later than the objective allows."""
    expected = {"WeirSLOBurnsFast", "WeirSLOBurnsSlowly"}
    crowds = chain(CROWDS, repeat(CROWDS[-1]))

    def fire() -> bool:
        asyncio.run(ask_at_once(outage.stack.agent.url, next(crowds)))
        return expected <= outage.prometheus.firing()

    assert eventually(fire, within_s=WITHIN_S), outage.prometheus.firing()


@pytest.mark.system
@pytest.mark.vllm
def test_a_control_plane_that_stays_away_fires_its_alerts(outage: Live) -> None:
    """For longer than a policy's lease; online requests are answered as before."""
    assert eventually(lambda: outage.prometheus.firing() >= OUTAGE, within_s=WITHIN_S)
    assert (
        outage.stack.online().completions.create(model=MODEL, prompt="once", max_tokens=2).choices
    )


@pytest.mark.system
@pytest.mark.vllm
def test_demand_that_outgrows_every_forecast_fires_its_alert(outage: Live) -> None:
    """And those of the outage end with it."""
    low = "WeirForecastCoverageLow"
    assert eventually(lambda: low not in outage.prometheus.firing(), within_s=WITHIN_S)
    seed_demand(database_of(outage.stack), growing)
    outage.stack.controlplane.start()
    assert eventually(lambda: low in outage.prometheus.firing(), within_s=WITHIN_S)
    assert eventually(lambda: not OUTAGE & outage.prometheus.firing(), within_s=WITHIN_S)


def test_services_without_co_location_can_be_chosen_too() -> None:
    """The control plane knows nothing of them: their own pods say that they are there."""
    served = {family.name for family in AgentMetrics().registry.collect()}
    for board in BOARDS.values():
        for query in board.variables.values():
            assert query.removeprefix("label_values(").partition(",")[0] in served


def test_expressions_name_known_metrics_only() -> None:
    known = known_metrics()
    expressions = dict(queries()) | {alert.name: alert.expr for alert in ALERTS}
    named = {name for expr in expressions.values() for name in re.findall(r"\bweir_\w+", expr)}
    assert named - known == set()
    assert len(named) > 30


@pytest.mark.parametrize("metric", Metric)
def test_a_service_shows_every_latency_that_an_objective_can_be_of(metric: Metric) -> None:
    """An alert of missed objectives leads there."""
    (panel,) = (p for p in BOARDS["service"].panels if p.title.startswith(metric.upper()))
    shown = " ".join(query.expr for query in panel.queries)
    for name in (
        f"weir_online_{metric}_seconds_bucket",
        f'weir_slo_measured_seconds{{metric="{metric}"',
    ):
        assert name in shown


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_complete(name: str) -> None:
    board: Board = BOARDS[name]
    shown = json.loads((CHART / "files" / "dashboards" / f"{name}.json").read_text())
    panels = [item for item in shown["panels"] if item["type"] != "row"]
    assert [item["title"] for item in panels] == [panel.title for panel in board.panels]
    assert shown["uid"] == board.uid
    places = [(item["gridPos"]["x"], item["gridPos"]["y"]) for item in panels]
    assert len(set(places)) == len(places)
    for item in panels:
        assert item["description"], item["title"]
        assert item["datasource"]["uid"] == "${datasource}"
        assert [target["expr"] for target in item["targets"]]
    variables = {item["name"] for item in shown["templating"]["list"]}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(panels)))
    assert used <= variables


def test_margins_below_zero_are_drawn() -> None:
    """They are what the panel is for; Grafana draws nothing below an axis' least value."""
    shown = json.loads((CHART / "files" / "dashboards" / "batches.json").read_text())
    least = {
        item["title"]: item["fieldConfig"]["defaults"].get("min")
        for item in shown["panels"]
        if item["type"] == "timeseries"
    }
    assert least.pop("Margin") is None
    assert set(least.values()) == {0}
