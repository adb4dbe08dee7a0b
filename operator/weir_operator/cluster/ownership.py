"""Which fields of an object are ours, and whether it must be applied again. Pure.

Server-side apply records our fields in ``metadata.managedFields`` (structured-merge-diff's
FieldsV1). Their live values are remembered as the API server returned them, so its defaults and
normal forms ("1000m" becomes "1") are never taken for drift.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weir_operator.planning.kinds import FIELD_MANAGER
from weir_operator.planning.types import Manifest

ABSENT = "<absent>"  # in fingerprints only; no JSON value looks like it together with its path


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What was applied to an object: the hash of the wish, and of our fields' values after it."""

    uid: str
    desired: str
    owned: str


def applied(desired: Manifest, result: Manifest) -> Applied:
    """The record of an apply and the object that it returned."""
    return Applied(
        uid=str(result["metadata"]["uid"]),
        desired=digest(desired),
        owned=digest(owned_values(result, owned_fields(result))),
    )


def must_apply(
    record: Applied | None, desired: Manifest, live: Manifest | None, fields: Mapping[str, Any]
) -> bool:
    """Whether ``desired`` must be applied.

    ``fields``: ours as of the last apply. The live object's own record of them is not asked: who
    overwrites a field of ours takes it out of there.
    """
    if live is None or record is None:
        return True
    if str(live["metadata"].get("uid")) != record.uid or digest(desired) != record.desired:
        return True
    return digest(owned_values(live, fields)) != record.owned


def owned_fields(live: Manifest, *, subresource: str = "") -> Mapping[str, Any]:
    """Our FieldsV1 of an object; empty when we own nothing of it."""
    for entry in live["metadata"].get("managedFields") or ():
        ours = entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"
        if ours and (entry.get("subresource") or "") == subresource:
            found = entry.get("fieldsV1") or {}
            return found if isinstance(found, dict) else {}
    return {}


def owned_values(value: object, fields: Mapping[str, Any]) -> object:
    """The part of a value that a field set names, as a JSON value that can be compared."""
    inner = {key: below for key, below in fields.items() if key != "."}
    if not inner:
        return value
    return {key: _at(value, key, below) for key, below in sorted(inner.items())}


def _at(value: object, key: str, below: Mapping[str, Any]) -> object:
    """What one path element of FieldsV1 selects: ``f:`` field, ``k:`` keyed item, ``v:`` member."""
    sort, _, name = key.partition(":")
    if sort == "f":
        found = value.get(name, ABSENT) if isinstance(value, Mapping) else ABSENT
    elif not isinstance(value, list):
        found = ABSENT
    elif sort == "k":
        found = _keyed(value, json.loads(name))
    elif sort == "v":
        return json.loads(name) in value
    else:  # "i:", the index of an atomic item
        found = value[int(name)] if int(name) < len(value) else ABSENT
    return found if found is ABSENT else owned_values(found, below)


def _keyed(items: list[Any], keys: Mapping[str, Any]) -> object:
    """The item of a list map that has these keys."""
    for item in items:
        if isinstance(item, Mapping) and all(item.get(k) == v for k, v in keys.items()):
            return item
    return ABSENT


def digest(value: object) -> str:
    """A hash of a JSON value; the order of an object's keys does not count."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
