"""What every object model shares: camelCase on the wire, and rules that only the API server checks.

Models are read leniently: the API server has already checked what it shows.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

ACRONYMS = {"Kv": "KV", "Uri": "URI", "Id": "ID", "Uid": "UID", "Slo": "SLO", "Url": "URL"}
RFC1123_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


def camel(name: str) -> str:
    """A field's name on the wire: camelCase, with Kubernetes' spelling of acronyms."""
    first, *rest = name.split("_")
    words = (part.capitalize() for part in rest)
    return first + "".join(ACRONYMS.get(word, word) for word in words)


class ApiModel(BaseModel):
    """A JSON object of the API."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=camel, populate_by_name=True
    )


def rule(expression: str, message: str) -> dict[str, str]:
    """One CEL rule. ``message`` names the field and the remedy."""
    return {"rule": expression, "message": message}


def fixed(field: str, *, optional: bool = False, why: str) -> dict[str, str]:
    """A rule for the parent of ``field``: it never changes.

    It stands at the parent since a rule on the field itself is evaded by removing the field first.
    """
    same = f"self.{field} == oldSelf.{field}"
    if optional:
        same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same})"
    return rule(same, f"{field} cannot be changed: {why}")


def quantities(field: str) -> dict[str, str]:
    """A rule for a map of quantities."""
    return rule(
        "self.all(name, isQuantity(string(self[name])) && !string(self[name]).startsWith('-'))",
        f"{field} must be quantities: a number, 0 or more, or one with a unit such as 500m, 8Gi or "
        "1k",
    )


def int_or_percent(parent: str, field: str) -> dict[str, str]:
    """A rule for the parent of a field that is a count or a share."""
    return rule(
        f"type(self.{field}) == int ? int(self.{field}) >= 0 : "
        f"string(self.{field}).matches('^(100|[1-9]?[0-9])%$')",
        f"{parent}.{field} must be a number of replicas, 0 or more, or from 0% to 100%",
    )


def with_rules(*rules: dict[str, str], **extra: JsonValue) -> dict[str, Any]:
    """Extra schema of a model or a field: CEL rules, and Kubernetes' own keywords."""
    return {"x-kubernetes-validations": [dict(item) for item in rules], **extra}


def list_map(*keys: str) -> dict[str, Any]:
    """Extra schema of a list whose items are known by ``keys``."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ANY_OBJECT: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""The schema of an object whose fields are another API's."""

INT_OR_STRING: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
}
"""The schema of a value such as ``1`` or ``25%``."""

Quantity = Annotated[int | str, Field(json_schema_extra={**INT_OR_STRING, "maxLength": 64})]
IntOrPercent = Annotated[int | str, Field(json_schema_extra={**INT_OR_STRING, "maxLength": 4})]
AnyObject = Annotated[dict[str, Any], Field(json_schema_extra=ANY_OBJECT)]
