"""Tables of the documentation that come from the custom resources: fields and condition reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weir_operator.api.crd import DEFINITIONS, manifest
from weir_operator.planning.job_reasons import BATCH_JOB_REASONS
from weir_operator.planning.llmservice_reasons import LLM_SERVICE_REASONS
from weir_operator.planning.reasons import Reason

Row = tuple[str, ...]
SPEC_HEADER: Row = ("field", "type", "default", "meaning")
STATUS_HEADER: Row = ("field", "type", "meaning")
REASONS_HEADER: Row = ("condition", "status", "reason", "Event", "means")
LONGEST_DEFAULT = 60
REASONS: Mapping[str, Sequence[Reason]] = {
    "LLMService": LLM_SERVICE_REASONS,
    "BatchJob": BATCH_JOB_REASONS,
}


def reason_rows(kind: str) -> Iterator[Row]:
    """Every reason of a kind's conditions."""
    for reason in REASONS[kind]:
        event = reason.event or "–"
        yield (f"`{reason.condition}`", reason.status, f"`{reason.name}`", event, reason.says)


def spec_rows(kind: str) -> Iterator[Row]:
    """Every field of a kind's ``spec``."""
    yield from _below("", _schema(kind, "spec"))


def status_rows(kind: str) -> Iterator[Row]:
    """Every field of a kind's ``status``, which has no defaults."""
    for name, sort, _, meaning in _below("", _schema(kind, "status")):
        yield (name, sort, meaning)


def _schema(kind: str, part: str) -> Mapping[str, Any]:
    definition = next(item for item in DEFINITIONS if item.kind == kind)
    version = manifest(definition)["spec"]["versions"][0]
    found: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found


def _below(place: str, schema: Mapping[str, Any]) -> Iterator[Row]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        path = f"{place}{name}"
        default = "**required**" if name in required else _default(field)
        yield (f"`{path}`", _type(field), default, str(field["description"]))
        if name == "conditions":  # of the form that every Kubernetes object has
            continue
        yield from _below(f"{path}.", field)
        yield from _below(f"{path}[].", field.get("items", {}))


def _type(field: Mapping[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or text"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    if field["type"] == "object" and "additionalProperties" in field:
        return f"map of {_type(field['additionalProperties'])}"
    kind = {"string": "text"}.get(field["type"], str(field["type"]))
    name = "time" if field.get("format") == "date-time" else kind
    return f"{name}{_bounds(field)}"


def _bounds(field: Mapping[str, Any]) -> str:
    signs = (
        ("minimum", ">" if field.get("exclusiveMinimum") else "≥"),
        ("maximum", "<" if field.get("exclusiveMaximum") else "≤"),
    )
    bounds = [f"{sign} {field[key]:,}" for key, sign in signs if key in field]
    return f" {', '.join(bounds)}" if bounds else ""


def _default(field: Mapping[str, Any]) -> str:
    """The default; an object's is told by the fields within it."""
    if field.get("default") in (None, [], {}) or field.get("type") == "object":
        return "–"
    text = json.dumps(field["default"])
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "see its meaning"
