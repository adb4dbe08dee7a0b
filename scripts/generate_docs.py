"""Fills the generated parts of the Markdown pages; with --check it only says what is stale.

A generated part stands between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, get_args, get_origin

from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from benchmarks.papers.page import page
from benchmarks.papers.paper import PAPERS
from benchmarks.summary import readme, results_page
from scripts import chart_tables, crd_tables
from weir_agent.metrics import AgentMetrics
from weir_controlplane.main import default_app
from weir_controlplane.settings import Settings
from weir_operator.metrics import OperatorMetrics

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(
    r"(?P<open><!-- generated:(?P<name>[a-z-]+) -->\n).*?(?P<close><!-- /generated:\2 -->)",
    re.DOTALL,
)


def settings_table(place: str) -> str:
    """A table of every setting of ``module:Class``."""
    module, _, name = place.partition(":")
    settings: type[BaseSettings] = getattr(importlib.import_module(module), name)
    prefix = str(settings.model_config.get("env_prefix", "")).upper()
    rows = (
        (f"`{prefix}{field.upper()}`", _type(info), _default(info), info.description or "")
        for field, info in settings.model_fields.items()
    )
    return _table(("variable", "type", "default", "meaning"), rows)


def agent_metrics() -> str:
    """A table of the agent's metrics."""
    return metrics_table(AgentMetrics().registry)


def operator_metrics() -> str:
    """A table of the operator's metrics."""
    return metrics_table(OperatorMetrics().registry)


def controlplane_metrics() -> str:
    """A table of the control plane's metrics."""
    with tempfile.TemporaryDirectory() as folder:
        app = default_app(Settings(data_dir=Path(folder)))
        app.build_middleware_stack()  # which has metrics of its own
        return metrics_table(REGISTRY, app.state.services.metrics)


def metrics_table(*registries: CollectorRegistry) -> str:
    """A table of every metric of Weir in these registries."""
    families = {f.name: f for registry in registries for f in registry.collect()}
    rows = (
        (
            f"`{name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            family.documentation,
        )
        for name, family in sorted(families.items())
        if name.startswith("weir_")
    )
    return _table(("metric", "type", "meaning"), rows)


def spec_table(kind: str) -> str:
    """A table of every field of a custom resource's ``spec``."""
    return _table(crd_tables.SPEC_HEADER, crd_tables.spec_rows(kind))


def status_table(kind: str) -> str:
    """A table of every field of a custom resource's ``status``."""
    return _table(crd_tables.STATUS_HEADER, crd_tables.status_rows(kind))


def reasons_table(kind: str) -> str:
    """A table of every reason of a custom resource's conditions."""
    return _table(crd_tables.REASONS_HEADER, crd_tables.reason_rows(kind))


def commands_table() -> str:
    """A table of the make targets."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    found = (re.match(r"([a-z0-9]+):.*  ## (.*)", line) for line in lines)
    rows = ((f"`make {match[1]}`", match[2]) for match in found if match)
    return _table(("command", "what it does"), rows)


def _type(info: FieldInfo) -> str:
    annotation = info.annotation
    options = [part for part in get_args(annotation) if part is not type(None)]
    if type(None) in get_args(annotation) and len(options) == 1:
        annotation = options[0]
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is SecretStr:
        return "secret"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    bounds = [
        f"{sign} {_number(getattr(limit, name))}"
        for limit in info.metadata
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if hasattr(limit, name)
    ]
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    names = {"str": "text", "Path": "path", "int": "integer", "float": "number", "bool": "boolean"}
    kinds = {"tuple": "list", "list": "list", "dict": "object"}
    word = names.get(name, kinds.get(name.partition("[")[0], name))
    return f"{word} {', '.join(bounds)}".strip()


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**required**"
    default = info.default
    if default is PydanticUndefined or default is None or default in ((), [], ""):
        return "–"
    if isinstance(default, Enum):
        return f"`{default.value}`"
    if isinstance(default, tuple):  # as the variable carries it
        return f"`{','.join(map(str, default))}`"
    return f"`{default}`"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |\n"
        for line in lines
    )


PARTS: dict[str, Callable[[], str]] = {
    "benchmarks": readme,
    "results": results_page,
    "alerts": lambda: _table(chart_tables.ALERTS_HEADER, chart_tables.alert_rows()),
    "chart-values": lambda: _table(chart_tables.VALUES_HEADER, chart_tables.values_rows()),
    "commands": commands_table,
    "panels": lambda: _table(chart_tables.PANELS_HEADER, chart_tables.panel_rows()),
    "spec-llmservice": partial(spec_table, "LLMService"),
    "status-llmservice": partial(status_table, "LLMService"),
    "spec-batchjob": partial(spec_table, "BatchJob"),
    "status-batchjob": partial(status_table, "BatchJob"),
    "reasons-llmservice": partial(reasons_table, "LLMService"),
    "reasons-batchjob": partial(reasons_table, "BatchJob"),
    "metrics-agent": agent_metrics,
    "metrics-controlplane": controlplane_metrics,
    "metrics-operator": operator_metrics,
    "settings-controlplane": lambda: settings_table("weir_controlplane.settings:Settings"),
    "settings-agent": lambda: settings_table("weir_agent.settings:AgentSettings"),
    "settings-operator": lambda: settings_table("weir_operator.settings:OperatorSettings"),
    "settings-client": lambda: settings_table("weir_cli.settings:ClientSettings"),
    **{f"paper-{name}": partial(page, name) for name in PAPERS},
}


def generated(text: str) -> str:
    """The text with every generated part filled in anew."""

    def fill(match: re.Match[str]) -> str:
        return f"{match['open']}{PARTS[match['name']]()}{match['close']}"

    return PART.sub(fill, text)


def main() -> int:
    """Writes, or checks; the exit status is 1 when something was stale in a check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, name what is stale")
    check = parser.parse_args().check
    stale = []
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in pages:
        text = path.read_text()
        fresh = generated(text)
        if fresh != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(fresh)
    for path in stale:
        print(f"{path}: {'stale, run `make docs`' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
