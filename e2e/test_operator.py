"""The operator on a real cluster: drift of any child is corrected at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from e2e.cluster.audit import Call
from e2e.support.manifests import idle_service
from e2e.support.platform import OPERATOR_ACCOUNT, SHOP, Platform
from e2e.support.waiting import until

NAME = "idle"
CHILDREN = {
    "serviceaccount": "serviceaccounts",
    "service": "services",
    "deployment": "deployments",
    "poddisruptionbudget": "poddisruptionbudgets",
    "networkpolicy": "networkpolicies",
}
"""Each kind with its plural."""
DRIFT_S = 5
"""From the write that made a child drift to the operator's, both in the API server's audit log."""
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
    )
    yield platform
    platform.shop.run("delete", "llmservice", NAME)


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_deleted_child_is_back(idle: Platform, kind: str) -> None:
    before = idle.shop.get(kind, NAME) or {}
    since = idle.api.audit.position()
    idle.shop.run("delete", kind, NAME, "--wait=false")
    until(
        lambda: (
            (idle.shop.get(kind, NAME) or before)["metadata"]["uid"] != before["metadata"]["uid"]
        ),
        f"another {kind}",
    )
    after = idle.shop.get(kind, NAME)
    assert after is not None
    assert "deletionTimestamp" not in after["metadata"]
    assert reaction_s(idle, kind, since) <= DRIFT_S


@pytest.mark.parametrize("kind", CHILDREN)
def test_an_edit_of_a_child_is_put_back_and_foreign_fields_stay(idle: Platform, kind: str) -> None:
    before = idle.shop.get(kind, NAME) or {}
    (changed,) = EDITS[kind]
    owner = {"annotations": {"example.com/owner": "shop"}}
    metadata = {**EDITS[kind].get("metadata", {}), **owner}
    edit = {**EDITS[kind], "metadata": metadata}
    since = idle.api.audit.position()
    idle.shop.run("patch", kind, NAME, "--type=merge", "--patch", json.dumps(edit))
    until(
        lambda: wish(idle, kind, changed) == wanted(before, changed),
        f"{kind}.{changed} is as it was",
    )
    after = idle.shop.get(kind, NAME) or {}
    assert after["metadata"]["annotations"]["example.com/owner"] == "shop"
    assert reaction_s(idle, kind, since) <= DRIFT_S


def reaction_s(platform: Platform, kind: str, since: int) -> float:
    """From kubectl's write of a child after a position to the operator's next, in seconds."""

    def writes() -> tuple[list[Call], list[Call]]:
        log = platform.api.audit.writes(since=since, namespace=SHOP, resource=CHILDREN[kind])
        mine = [call for call in log if call.name == NAME]
        caused = [call for call in mine if call.user_agent.startswith("kubectl")]
        return caused, [
            call
            for call in mine
            if call.user == OPERATOR_ACCOUNT and caused and call.at > caused[-1].at
        ]

    until(lambda: all(writes()), f"both writes of {kind} in the audit log")
    caused, answered = writes()
    return (answered[0].at - caused[-1].at).total_seconds()


def wanted(found: dict[str, object], field: str) -> object:
    """The part of an object that an edit touched; of the metadata the labels."""
    part = found.get(field)
    return part["labels"] if field == "metadata" and isinstance(part, dict) else part


def wish(platform: Platform, kind: str, field: str) -> object:
    """The same part as it is now."""
    return wanted(platform.shop.get(kind, NAME) or {}, field)
