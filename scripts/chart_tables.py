"""Tables of the documentation that come from the chart and from observability/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from observability.alerts import ALERTS
from scripts.generate_chart import BOARDS, CHART, SCHEMA

Row = tuple[str, ...]
VALUES_HEADER: Row = ("value", "default", "meaning")
ALERTS_HEADER: Row = ("alert", "severity", "holds for", "means")
PANELS_HEADER: Row = ("dashboard", "panel", "shows")
_PLACEHOLDER = re.compile(r"\{\{ \$(?:labels\.(?P<label>\w+)|value)[^}]*\}\}")


def values_rows() -> Iterator[Row]:
    """Every value of the chart."""
    schema = json.loads(SCHEMA.read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, default in values.items():
        yield from _rows(name, schema["properties"][name], default, schema["definitions"])


def _rows(
    path: str, schema: Mapping[str, Any], default: object, known: Mapping[str, Any]
) -> Iterator[Row]:
    resolved = schema
    if "$ref" in schema:
        resolved = {**known[schema["$ref"].rpartition("/")[2]], **schema}
    nested = resolved.get("properties")
    if isinstance(default, dict) and nested and set(default) <= set(nested) and default:
        if path.endswith(".resources"):
            yield (f"`{path}`", f"`{json.dumps(default)}`", resolved["description"])
            return
        for name, inner in default.items():
            yield from _rows(f"{path}.{name}", nested[name], inner, known)
        return
    shown = "–" if default in ("", [], {}) else f"`{json.dumps(default)}`"
    yield (f"`{path}`", shown, resolved["description"])


def alert_rows() -> Iterator[Row]:
    """Every alert."""
    for alert in ALERTS:
        said = _PLACEHOLDER.sub(_in_words, f"{alert.summary}. {alert.description}")
        yield (f"`{alert.name}`", alert.severity, alert.hold, said)


def _in_words(placeholder: re.Match[str]) -> str:
    """What Prometheus puts in the place of a template: a label by its name, or the value."""
    return f"*{placeholder['label'] or 'N'}*"


def panel_rows() -> Iterator[Row]:
    """Every panel of every dashboard."""
    for board in BOARDS.values():
        for panel in board.panels:
            yield (board.title, panel.title, panel.description)
