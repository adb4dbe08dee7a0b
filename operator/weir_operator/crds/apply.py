"""Applies the CRDs of this version and waits until the API server serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from kubernetes.aio.client import ApiClient, ApiextensionsV1Api

from weir_operator.api.crd import DEFINITIONS, manifest

FIELD_MANAGER = "weir-crds"
CALL_TIMEOUT_S = 20.0
LOOK_EVERY_S = 0.3

_log = structlog.get_logger(__name__)


class NotEstablishedError(Exception):
    """The API server does not serve a CRD; the message says which and what it says of it."""


def manifests() -> list[dict[str, Any]]:
    """The CRDs of this version."""
    return [manifest(definition) for definition in DEFINITIONS]


def unserved(conditions: Sequence[Mapping[str, str]]) -> str | None:
    """Why a CRD with these status conditions is not served; None when it is."""
    by_type = {item["type"]: item for item in conditions}
    for wanted in ("NamesAccepted", "Established"):
        found = by_type.get(wanted, {})
        if found.get("status") != "True":
            said = f": {found['message']}" if found.get("message") else ""
            return f"{wanted} is {found.get('status', 'not known yet')}{said}"
    return None


async def apply_crds(client: ApiClient, *, within_s: float) -> None:
    """Server-side apply of every CRD, by force: their fields are nobody else's.

    Raises:
        NotEstablishedError: one is not served ``within_s`` seconds after it was applied.
        ApiException: the API server refuses; its message says what.
    """
    api = ApiextensionsV1Api(client)
    for crd in manifests():
        name = crd["metadata"]["name"]
        await api.patch_custom_resource_definition(
            name,
            crd,
            field_manager=FIELD_MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
            _request_timeout=CALL_TIMEOUT_S,
        )
        _log.info("crd_applied", crd=name)
    for crd in manifests():
        await _wait_established(api, crd["metadata"]["name"], within_s=within_s)


async def _wait_established(api: ApiextensionsV1Api, name: str, *, within_s: float) -> None:
    reason: str | None = "not asked yet"
    try:
        async with asyncio.timeout(within_s):
            while reason is not None:
                crd = await api.read_custom_resource_definition(
                    name, _request_timeout=CALL_TIMEOUT_S
                )
                told = api.api_client.sanitize_for_serialization(crd)
                reason = unserved(told.get("status", {}).get("conditions") or ())
                if reason is not None:
                    await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise NotEstablishedError(f"{name} is not served after {within_s:g} s: {reason}") from None
    _log.info("crd_established", crd=name)
