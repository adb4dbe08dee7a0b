"""Panels as values, and how they become Grafana's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT = 8


@dataclass(frozen=True, kw_only=True)
class Query:
    """A PromQL expression; ``legend`` in Grafana's form, ``{{label}}``."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel. ``unit`` is Grafana's name of a unit; ``number``: the newest value, large.

    ``signed``: values below zero are shown too; else the axis begins at zero, and hides them.
    """

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    width: int = 12
    number: bool = False
    signed: bool = False


@dataclass(frozen=True, kw_only=True)
class Board:
    """A dashboard. ``rows``: panels by heading; ``variables``: query of label values by name."""

    uid: str
    title: str
    description: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Mapping[str, str]

    @property
    def panels(self) -> list[Panel]:
        """All panels, in reading order."""
        return [panel for panels in self.rows.values() for panel in panels]

    def to_json(self) -> str:
        """Grafana's JSON, the same for the same board."""
        builder = (
            dashboard.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags(["weir", "llm"])
            .editable()
            .refresh("30s")
            .time("now-1h", "now")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .with_variable(
                dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
            )
        )
        for name, query in self.variables.items():
            builder = builder.with_variable(_variable(name, query))
        for heading, panels in self.rows.items():
            builder = builder.with_row(dashboard.Row(heading))
            for panel in panels:
                builder = builder.with_panel(_number(panel) if panel.number else _timeseries(panel))
        return json.dumps(builder.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(DATASOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
    )


def _targets(panel: Panel) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery()
        .ref_id(chr(ord("A") + number))
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
        for number, query in enumerate(panel.queries)
    ]


def _timeseries(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(DATASOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(HEIGHT)
        .fill_opacity(8)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
    )
    if not panel.signed:
        built = built.min(0)
    for target in _targets(panel):
        built = built.with_target(target)
    return built


def _number(panel: Panel) -> stat.Panel:
    built = (
        stat.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(DATASOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(HEIGHT // 2)
        .color_mode(BigValueColorMode.NONE)
    )
    for target in _targets(panel):
        built = built.with_target(target)
    return built
