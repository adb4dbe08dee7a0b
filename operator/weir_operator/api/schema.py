"""Makes pydantic's JSON schemas structural, as the API server wants them.

References are inlined, null becomes absence, and keywords that OpenAPI 3.0 lacks are rewritten or
refused. A keyword that is not known here raises: a CRD must not lose a check in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

KEPT = frozenset({
    "type", "format", "description", "default", "enum", "pattern", "required", "minimum", "maximum",
    "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "minProperties",
    "multipleOf", "properties", "items", "additionalProperties", "anyOf",
})  # fmt: skip
DROPPED = frozenset({"title", "$defs", "$ref", "exclusiveMinimum", "exclusiveMaximum", "const"})


class NotStructuralError(Exception):
    """A model says something that a structural schema cannot; change the model."""


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of ``model``, by the names on the wire.

    Raises:
        NotStructuralError: the model uses a keyword that cannot be expressed; the message names
            it and the place.
    """
    raw = model.model_json_schema(by_alias=True)
    return _rewrite(raw, raw.get("$defs", {}), model.__name__)


def without_defaults(schema: Schema) -> Schema:
    """The same schema with no default anywhere: what the operator writes is never completed."""
    return {
        key: without_defaults(value)
        if isinstance(value, dict) and key != "properties"
        else {name: without_defaults(item) for name, item in value.items()}
        if key == "properties"
        else value
        for key, value in schema.items()
        if key != "default"
    }


def _rewrite(schema: Mapping[str, Any], known: Mapping[str, Any], where: str) -> Schema:
    found = _without_null(_resolved(schema, known, where), known, where)
    unknown = {key for key in found if not key.startswith("x-kubernetes-")} - KEPT - DROPPED
    if unknown:
        raise NotStructuralError(f"{where}: {', '.join(sorted(unknown))} cannot be expressed")
    made = {key: value for key, value in found.items() if key not in DROPPED}
    made.update(_bounds(found))
    if "const" in found:
        made["enum"] = [found["const"]]
    if found.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    elif "anyOf" in made:
        raise NotStructuralError(f"{where}: a union of types cannot be expressed")
    if found.get("x-kubernetes-preserve-unknown-fields"):
        made.pop("additionalProperties", None)  # the two exclude each other
    return made | _inner(made, known, where)


def _inner(schema: Schema, known: Mapping[str, Any], where: str) -> Schema:
    """The rewritten parts of an object's or a list's schema.

    Raises:
        NotStructuralError: a map's values have no type.
    """
    inner: Schema = {}
    required = set(schema.get("required", ()))
    if properties := schema.get("properties"):
        inner["properties"] = {
            name: _property(item, known, f"{where}.{name}", required=name in required)
            for name, item in properties.items()
        }
    if (items := schema.get("items")) is not None:
        inner["items"] = _rewrite(items, known, f"{where}[]")
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        inner["additionalProperties"] = _rewrite(values, known, f"{where}{{}}")
    elif values is not None:
        raise NotStructuralError(f"{where}: give the type of additionalProperties")
    return inner


def _property(
    schema: Mapping[str, Any], known: Mapping[str, Any], where: str, *, required: bool
) -> Schema:
    made = _rewrite(schema, known, where)
    if not made.get("description"):
        raise NotStructuralError(f"{where}: has no description")
    optional = "default" in schema and schema["default"] is None
    if optional:
        made.pop("default", None)
    elif not required and made.get("type") == "object" and "properties" in made:
        # Without a default here the ones inside are never set; rules see it before they are.
        made["default"] = {
            name: item["default"] for name, item in made["properties"].items() if "default" in item
        }
    return made


def _resolved(schema: Mapping[str, Any], known: Mapping[str, Any], where: str) -> Schema:
    """The schema with its reference inlined; what stands beside a reference wins.

    Raises:
        NotStructuralError: the reference leads nowhere.
    """
    reference = schema.get("$ref")
    if reference is None:
        return dict(schema)
    name = str(reference).rpartition("/")[2]
    if name not in known:
        raise NotStructuralError(f"{where}: {reference} is not defined")
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    return _resolved(known[name], known, where) | beside


def _without_null(schema: Schema, known: Mapping[str, Any], where: str) -> Schema:
    """``X | null`` as X: a field that may be null may as well be absent."""
    choices = schema.get("anyOf", ())
    others = [choice for choice in choices if choice.get("type") != "null"]
    if len(others) == len(choices):
        return schema
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    if len(others) != 1:
        return beside | {"anyOf": others}
    return _resolved(others[0], known, where) | beside


def _bounds(schema: Mapping[str, Any]) -> Schema:
    """Exclusive bounds as OpenAPI 3.0 has them: a number, and a flag beside it."""
    made: Schema = {}
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in schema:
            made |= {inclusive: schema[exclusive], exclusive: True}
    return made
