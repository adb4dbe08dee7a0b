"""Fills what the chart takes from the code; with --check it only says what is stale.

The settings of the components, with their bounds, go into values.schema.json; dashboards and
alerts, which are code in observability/, into files/.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings

from observability import alerts, batches, fleet, service
from weir_controlplane.settings import Settings
from weir_operator.settings import OperatorSettings

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "weir"
SCHEMA = CHART / "values.schema.json"
BOARDS = {"fleet": fleet.BOARD, "service": service.BOARD, "batches": batches.BOARD}
CONTROLPLANE_BY_CHART = frozenset(
    {
        *("host", "port", "data_dir", "database_url", "files_url", "redis_url", "log_level"),
        *("admin_key_file", "operator_service_account", "token_audience"),
    }
)
"""Settings that the chart's templates decide; the rest is open under controlplane.settings."""
OPERATOR_BY_CHART = frozenset(
    {
        *("host", "port", "log_level", "pod_name", "kubeconfig", "control_plane_url", "audience"),
        *("control_plane_token_file", "control_plane_namespace", "lease_name", "lease_namespace"),
        *("vllm_image", "torch_image", "image_pull_policy", "pod_monitor_labels", "dns_ports"),
        "image_pull_secrets",
    }
)
_KEPT = (
    *("description", "type", "items", "enum", "pattern", "minLength", "maxLength"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
)


def settings_schema(settings: type[BaseSettings], by_chart: Collection[str]) -> dict[str, Any]:
    """The settings that are open, each as JSON Schema with its bounds."""
    properties = settings.model_json_schema()["properties"]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: _plain(schema) for name, schema in properties.items() if name not in by_chart
        },
    }


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    merged = {**schema, **(options[0] if len(options) == 1 else {})}
    return {key: merged[key] for key in _KEPT if key in merged}


def rendered() -> dict[Path, str]:
    """Each generated file with its text."""
    schema = json.loads(SCHEMA.read_text())
    schema["definitions"]["controlplaneSettings"] = settings_schema(Settings, CONTROLPLANE_BY_CHART)
    schema["definitions"]["operatorSettings"] = settings_schema(OperatorSettings, OPERATOR_BY_CHART)
    return {
        SCHEMA: json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        CHART / "files" / "alerts.yaml": alerts.rules(),
        **{
            CHART / "files" / "dashboards" / f"{name}.json": board.to_json()
            for name, board in BOARDS.items()
        },
    }


def main() -> int:
    """Writes, or checks; the exit status is 1 when something was stale in a check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, name what is stale")
    check = parser.parse_args().check
    stale = [
        path for path, text in rendered().items() if not path.exists() or path.read_text() != text
    ]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'stale, run `make docs`' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rendered()[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
