"""The operator on a real cluster: drift of any child is corrected at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from e2e.support.manifests import idle_service
from e2e.support.platform import Platform
from e2e.support.waiting import until

NAME = "idle"
CHILDREN = ("serviceaccount", "service", "deployment", "poddisruptionbudget", "networkpolicy")
DRIFT_S = 5
EDITS: Mapping[str, Mapping[str, Any]] = {
    "service": {"spec": {"selector": {"app.kubernetes.io/component": "other"}}},
    "deployment": {"spec": {"revisionHistoryLimit": 7}},
    "poddisruptionbudget": {"metadata": {"labels": {"app.kubernetes.io/part-of": "other"}}},
    "networkpolicy": {"metadata": {"labels": {"app.kubernetes.io/part-of": "other"}}},
    "serviceaccount": {"automountServiceAccountToken": True},
}


@pytest.fixture(scope="module")
def idle(platform: Platform) -> Iterator[Platform]:
    """The platform with an LLMService of no replicas."""
    platform.shop.apply(idle_service(NAME))
    until(
        lambda: all(platform.shop.get(kind, NAME) for kind in CHILDREN),
        "every child is there",
        within_s=60,
    )
    yield platform
    platform.shop.run("delete", "llmservice", NAME)


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_deleted_child_is_back(idle: Platform, kind: str) -> None:
    before = idle.shop.get(kind, NAME) or {}
    idle.shop.run("delete", kind, NAME, "--wait=false")
    until(
        lambda: (
            (idle.shop.get(kind, NAME) or before)["metadata"]["uid"] != before["metadata"]["uid"]
        ),
        f"another {kind}",
        within_s=DRIFT_S,
        every_s=0.2,
    )
    after = idle.shop.get(kind, NAME)
    assert after is not None
    assert "deletionTimestamp" not in after["metadata"]


@pytest.mark.parametrize("kind", CHILDREN)
def test_an_edit_of_a_child_is_put_back_and_foreign_fields_stay(idle: Platform, kind: str) -> None:
    before = idle.shop.get(kind, NAME) or {}
    (changed,) = EDITS[kind]
    owner = {"annotations": {"example.com/owner": "shop"}}
    metadata = {**EDITS[kind].get("metadata", {}), **owner}
    edit = {**EDITS[kind], "metadata": metadata}
    idle.shop.run("patch", kind, NAME, "--type=merge", "--patch", json.dumps(edit))
    until(
        lambda: wish(idle, kind, changed) == wanted(before, changed),
        f"{kind}.{changed} is as it was",
        within_s=DRIFT_S,
        every_s=0.2,
    )
    after = idle.shop.get(kind, NAME) or {}
    assert after["metadata"]["annotations"]["example.com/owner"] == "shop"


def wanted(found: dict[str, object], field: str) -> object:
    """The part of an object that an edit touched; of the metadata the labels."""
    part = found.get(field)
    return part["labels"] if field == "metadata" and isinstance(part, dict) else part


def wish(platform: Platform, kind: str, field: str) -> object:
    """The same part as it is now."""
    return wanted(platform.shop.get(kind, NAME) or {}, field)
