"""Each alert fires when its cause is there for long enough, and not before, on promtool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from observability.alerts import ALERTS, rules
from observability.fleet import BOARD
from scripts.chart_tables import alert_rows
from tests.support.processes import find_binary

ROOT = Path(__file__).resolve().parents[2]
POD = 'service="search/llama",agent="search.llama-0"'
OBJECTIVE = f'{POD},metric="tbt",statistic="p99"'
SLO = f"weir_slo_attained{{{OBJECTIVE}}}"
AGREED = {f"weir_slo_threshold_seconds{{{OBJECTIVE}}}": "0.1x800"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series as promtool writes them, one sample a minute; what each means for the alert."""

    fires: Mapping[str, str]
    at: str
    quiet_at: str | None
    quiet: Mapping[str, str]


def of_pods(metric: str, **values: str) -> Mapping[str, str]:
    """A series of the metric for each pod."""
    return {f'{metric}{{pod="{pod}"}}': text for pod, text in values.items()}


CASES: Mapping[str, Case] = {
    # Kept for an hour, then missed in half of the minutes: more than 14.4% of an hour after nine.
    "WeirSLOBurnsFast": Case(
        fires={**AGREED, SLO: "1x60 " + "0 1 " * 30},
        at="1h40m",
        quiet_at="1h5m",
        quiet={**AGREED, SLO: "1x60 0x2 1x60"},
    ),
    "WeirSLOBurnsSlowly": Case(
        fires={**AGREED, SLO: "1x360 " + "0 1 1 1 1 1 1 1 1 1 " * 36},
        at="12h",
        quiet_at="6h10m",
        quiet={**AGREED, SLO: "1x360 " + "0 1x99 " * 4},
    ),
    "WeirPolicyLeaseStale": Case(
        fires={
            f'weir_policy_source{{{POD},source="control_plane"}}': "1x10 0x20",
            f'weir_policy_source{{{POD},source="forecast"}}': "0x10 1x20",
        },
        at="20m",
        quiet_at="14m",
        quiet={f'weir_policy_source{{{POD},source="control_plane"}}': "1x10 0x3 1x20"},
    ),
    "WeirForecastCoverageLow": Case(
        fires={
            f'weir_forecast_coverage_ratio{{{POD},method="quantile"}}': "0.85x60",
            f'weir_forecast_coverage_ratio{{{POD},method="mean_sigma"}}': "0.5x60",
        },
        at="35m",
        quiet_at="20m",
        quiet={
            f'weir_forecast_coverage_ratio{{{POD},method="quantile"}}': "0.95x60",
            f'weir_forecast_coverage_ratio{{{POD},method="mean_sigma"}}': "0.5x60",
        },
    ),
    "WeirBatchStuck": Case(
        fires={'weir_batches_stuck{stage="finalizing"}': "0x10 1x20"},
        at="17m",
        quiet_at="14m",
        quiet={
            'weir_batches_stuck{stage="finalizing"}': "0x10 1x3 0x20",
            'weir_batches_stuck{stage="running"}': "0x40",
        },
    ),
    "WeirBatchesWait": Case(
        fires={'weir_batches_waiting{reason="NoMatchingModel"}': "0x10 2x60"},
        at="45m",
        quiet_at="35m",
        quiet={'weir_batches_waiting{reason="NoMatchingModel"}': "0x10 2x20 0x60"},
    ),
    # Two replicas of the control plane: the one that expects less says so.
    "WeirBatchAtRisk": Case(
        fires={
            'weir_batch_margin_seconds{batch="batch_1",pod="a"}': "600x10 -60x60",
            'weir_batch_margin_seconds{batch="batch_1",pod="b"}': "600x10 30x60",
        },
        at="30m",
        quiet_at="20m",
        quiet={
            'weir_batch_margin_seconds{batch="batch_1",pod="a"}': "600x10 -60x10 60x60",
            'weir_batch_margin_seconds{batch="batch_1",pod="b"}': "600x80",
        },
    ),
    "WeirEngineDown": Case(
        fires={f"weir_engine_up{{{POD}}}": "1x5 0x20"},
        at="12m",
        quiet_at="9m",
        quiet={f"weir_engine_up{{{POD}}}": "1x5 0x2 1x20"},
    ),
    # Back before it is down for long: of every four minutes it serves three.
    "WeirEngineDiesOften": Case(
        fires={
            f"weir_engine_up{{{POD}}}": "1x9 _ 1 1 1 _ 1 1 1 _ 1 1 1 _ 1x20",
            f"weir_engine_restarts_total{{{POD}}}": "0x9 _ 1 1 1 _ 2 2 2 _ 3 3 3 _ 4x20",
        },
        at="26m",
        quiet_at="22m",
        quiet={f"weir_engine_restarts_total{{{POD}}}": "0x9 _ 1 1 1 _ 2 2 2 _ 3x40"},
    ),
    "WeirControlPlaneGone": Case(
        fires=of_pods("weir_controlplane_requests_in_flight", a="0x10 stale"),
        at="15m",
        quiet_at="12m",
        # One of two replicas is left.
        quiet=of_pods("weir_controlplane_requests_in_flight", a="0x10 stale", b="0x40"),
    ),
    "WeirOperatorWithoutLeader": Case(
        fires=of_pods("weir_operator_leader", a="1x5 0x20", b="0x25"),
        at="9m",
        quiet_at="7m",
        quiet=of_pods("weir_operator_leader", a="1x5 0x20", b="0x5 1x20"),
    ),
    "WeirStatusRefused": Case(
        fires=of_pods("weir_operator_status_refused_total", a="0x5 0+1x30", b="0x35"),
        at="20m",
        quiet_at="7m",
        # Refused no more: the CRDs were brought up.
        quiet=of_pods("weir_operator_status_refused_total", a="0+1x3 3x40"),
    ),
}


def firing_at(series: Mapping[str, str], name: str, at: str, folder: Path) -> bool:
    """Whether the alert fires at that time, by promtool's account of what it got."""
    wanted = {"eval_time": at, "alertname": name, "exp_alerts": []}
    done = promtool_test(series, {"alert_rule_test": [wanted]}, folder, alert=name)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "got:[" in said.replace("\n", "").replace(" ", ""), said
    return done.returncode != 0


def value_at(series: Mapping[str, str], expr: str, at: str, folder: Path) -> float:
    """The one sample of an expression at that time, by promtool's account of what it got."""
    wanted = {"expr": expr, "eval_time": at, "exp_samples": []}
    done = promtool_test(series, {"promql_expr_test": [wanted]}, folder)
    said = done.stdout + done.stderr
    got = re.findall(r'got:"?(?:\{\})?(\S+?)"?$', said.replace(" ", ""), re.MULTILINE)
    assert len(got) == 1, said
    return float(got[0])


def promtool_test(
    series: Mapping[str, str], asked: Mapping[str, Any], folder: Path, *, alert: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The rule of that alert on these series; the others would take most of the time."""
    file = yaml.safe_load(rules())
    for group in file["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule["alert"] == alert]
    (folder / "rules.yaml").write_text(yaml.safe_dump(file))
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": key, "values": text} for key, text in series.items()],
        **asked,
    }
    suite = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(suite))
    return subprocess.run(
        [find_binary("promtool"), "test", "rules", "test.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_for_its_cause_and_only_after_its_time(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert firing_at(case.fires, name, case.at, tmp_path)
    if case.quiet_at is not None:
        assert not firing_at(case.fires, name, case.quiet_at, tmp_path)
    assert not firing_at(case.quiet, name, case.at, tmp_path)


def test_objectives_that_nobody_asks_anything_of_burn_no_budget(tmp_path: Path) -> None:
    """Nothing is measured then. A slow request in a quiet night is no reason to wake anybody."""
    evening = {**AGREED, SLO: "1x60 0x20 stale"}
    assert firing_at(evening, "WeirSLOBurnsFast", "1h18m", tmp_path)
    assert not firing_at(evening, "WeirSLOBurnsFast", "1h30m", tmp_path)
    night = {**AGREED, SLO: "_x180 0 stale"}
    for at in ("3h3m", "3h20m"):
        assert not firing_at(night, "WeirSLOBurnsFast", at, tmp_path)
        assert not firing_at(night, "WeirSLOBurnsSlowly", at, tmp_path)


# An engine that died and loads its model again; a pod that loads it for the first time; no agent.
DIED = {
    f"weir_engine_up{{{POD}}}": "1x5 0 stale",
    f"up{{{POD}}}": "1x6 0x30",
}
LOADS = {'up{service="search/llama",agent="search.llama-1"}': "0x30"}
FOREIGN = {'up{service="kube-scheduler",job="x"}': "0x30"}


def test_an_engine_is_missed_while_it_starts_again_and_nobody_else_is(tmp_path: Path) -> None:
    assert firing_at(DIED, "WeirEngineDown", "20m", tmp_path)
    assert not firing_at({**LOADS, **FOREIGN}, "WeirEngineDown", "20m", tmp_path)


# Of a pod that is being deleted, and has a request of a quarter of an hour left.
DRAINS = {
    f"weir_engine_up{{{POD}}}": "1x5 stale",
    f"up{{{POD}}}": "1x5 0x30",
    'kube_pod_deletion_timestamp{namespace="search",pod="llama-0"}': "_x5 1x31",
}


def test_a_pod_that_finishes_its_requests_is_not_down(tmp_path: Path) -> None:
    assert not firing_at(DRAINS, "WeirEngineDown", "20m", tmp_path)
    other = {name.replace("llama-0", "llama-1"): values for name, values in DRAINS.items()}
    assert firing_at({**DIED, **other}, "WeirEngineDown", "20m", tmp_path)


# Two days without a word: once 3,000 minutes have passed, the last good sample is older than a day.
LONG_GONE: Mapping[str, Mapping[str, str]] = {
    "WeirEngineDown": {f"weir_engine_up{{{POD}}}": "1x5 0 stale", f"up{{{POD}}}": "1x6 0x3000"},
    "WeirControlPlaneGone": of_pods("weir_controlplane_requests_in_flight", a="0x10 stale"),
    "WeirOperatorWithoutLeader": of_pods("weir_operator_leader", a="1x5 stale"),
}
BACK: Mapping[str, Mapping[str, str]] = {
    "WeirEngineDown": {
        f"weir_engine_up{{{POD}}}": "1x5 _x2900 1x100",
        f"up{{{POD}}}": "1x6 0x2899 1x100",
    },
    "WeirControlPlaneGone": of_pods(
        "weir_controlplane_requests_in_flight", a="0x10 stale _x2890 0x100"
    ),
    "WeirOperatorWithoutLeader": of_pods("weir_operator_leader", a="1x5 stale _x2900 1x100"),
}


@pytest.mark.parametrize("name", LONG_GONE)
def test_what_is_gone_for_days_is_told_until_it_is_back(name: str, tmp_path: Path) -> None:
    assert firing_at(LONG_GONE[name], name, "47h", tmp_path)
    assert firing_at(BACK[name], name, "47h", tmp_path)
    assert not firing_at(BACK[name], name, "49h", tmp_path)


def test_the_fleet_shows_how_many_engines_are_down(tmp_path: Path) -> None:
    (panel,) = (panel for panel in BOARD.panels if panel.title == "Engines down")
    expr = panel.queries[0].expr.replace("$service", ".*")
    well = {'weir_engine_up{service="search/llama",agent="search.llama-2"}': "1x30"}
    refused = {'weir_engine_up{service="ads/phi",agent="ads.phi-0"}': "0x30"}
    quiet = {**well, **LOADS, **FOREIGN}
    assert value_at(quiet, expr, "20m", tmp_path) == 0
    assert value_at({**quiet, **DIED}, expr, "20m", tmp_path) == 1
    assert value_at({**quiet, **DRAINS}, expr, "20m", tmp_path) == 0
    assert value_at({**quiet, **DIED, **refused}, expr, "20m", tmp_path) == 2


def test_an_operator_of_which_no_replica_is_left_is_missed(tmp_path: Path) -> None:
    series = of_pods("weir_operator_leader", a="1x5 stale")
    assert firing_at(series, "WeirOperatorWithoutLeader", "9m", tmp_path)
    assert not firing_at(series, "WeirOperatorWithoutLeader", "7m", tmp_path)
    assert not firing_at({"up": "1x10"}, "WeirOperatorWithoutLeader", "9m", tmp_path)


def test_replicas_that_are_scraped_and_have_no_database_are_missed(tmp_path: Path) -> None:
    scraped = of_pods("weir_controlplane_requests_in_flight", a="0x60", b="0x60")
    away = of_pods("weir_controlplane_database_up", a="1x5 0x20 1x20", b="1x3 0x25 1x20")
    assert not firing_at({**scraped, **away}, "WeirControlPlaneGone", "7m", tmp_path)
    assert firing_at({**scraped, **away}, "WeirControlPlaneGone", "9m", tmp_path)
    assert not firing_at({**scraped, **away}, "WeirControlPlaneGone", "27m", tmp_path)
    one = of_pods("weir_controlplane_database_up", a="0x60", b="1x60")
    assert not firing_at({**scraped, **one}, "WeirControlPlaneGone", "9m", tmp_path)


def test_every_alert_names_a_runbook_that_says_what_to_do() -> None:
    for alert in ALERTS:
        page, _, anchor = alert.manifest()["annotations"]["runbook"].partition("#")
        sections = (ROOT / page).read_text().split("\n## ")[1:]
        found = {
            title.strip().lower(): text for title, _, text in (s.partition("\n") for s in sections)
        }
        assert anchor in found, f"{page} has no section {alert.name}"
        for part in ("**Users notice**", "**Look**", "**Do**"):
            assert part in found[anchor], f"{alert.name}: {part}"


def test_the_documentation_has_no_templates_of_prometheus() -> None:
    table = "\n".join(" | ".join(row) for row in alert_rows())
    assert "{{" not in table
    assert "$" not in table
    assert "*N* batches get nowhere (*stage*)" in table
    assert "expected to end *N* late" in table


def test_every_alert_has_its_case() -> None:
    assert sorted(CASES) == sorted(alert.name for alert in ALERTS)


def test_the_rule_file_is_one(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(rules())
    words: Sequence[str | Path] = (find_binary("promtool"), "check", "rules", path)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout, done.stderr
