"""Calls to the API server by kind and name: JSON in, JSON out, a timeout on each. No decisions.

Every write first asks ``may_write``. The Lease is written through a caller of its own, which asks
nobody.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from weir_operator.cluster.connection import auth_headers
from weir_operator.cluster.errors import (
    ClusterError,
    NotFoundError,
    UnreachableError,
    error_of,
)
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.kinds import FIELD_MANAGER, Kind
from weir_operator.planning.types import Manifest

HTTP_SUCCESS = range(200, 300)
LIST_PAGE = 500


class ObjectList:
    """A complete list of a kind and the version of the collection that it shows."""

    def __init__(self, items: list[Manifest], resource_version: str) -> None:
        self.items = items
        self.resource_version = resource_version


class ClusterApi:
    """The API server, as this operator uses it. Every call raises ``ClusterError``."""

    def __init__(
        self,
        client: ApiClient,
        *,
        check: Callable[[], None],
        metrics: OperatorMetrics,
        read_timeout_s: float,
        write_timeout_s: float,
    ) -> None:
        """``check`` raises when a write may not be sent."""
        self._client = client
        self._check = check
        self._metrics = metrics
        self._read_timeout_s = read_timeout_s
        self._write_timeout_s = write_timeout_s

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any]:
        """One object."""
        return await self._read(path_of(kind, namespace, name))

    async def has_kind(self, kind: Kind) -> bool:
        """Whether the API server serves the kind now."""
        try:
            found = await self._read(group_path(kind))
        except NotFoundError:
            return False
        return any(entry.get("name") == kind.plural for entry in found.get("resources", ()))

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        label: str | None = None,
        keep: Callable[[Manifest], Manifest],
    ) -> ObjectList:
        """Every object of a kind, ``label``: only those that carry it, read in pages.

        ``keep``: what is wanted of an object; no more than a page is ever held whole.
        """
        items: list[Manifest] = []
        token = ""
        while True:
            query = {"limit": str(LIST_PAGE)}
            if label:
                query["labelSelector"] = label
            if token:
                query["continue"] = token
            page = await self._read(path_of(kind, namespace), query)
            shared = {"apiVersion": kind.api_version, "kind": kind.kind}  # items leave them out
            items.extend(keep({**shared, **item}) for item in page.get("items") or ())
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return ObjectList(items, str(page["metadata"].get("resourceVersion") or ""))

    async def apply(
        self, kind: Kind, manifest: Manifest, *, status: bool = False
    ) -> dict[str, Any]:
        """Server-side apply under our field manager; the object as it is then.

        A ``metadata.uid`` in the manifest is a precondition: without that very object it is a
        conflict, and nothing is made.
        """
        metadata = manifest["metadata"]
        path = path_of(kind, metadata.get("namespace"), metadata["name"])
        return await self._write(
            "PATCH",
            f"{path}/status" if status else path,
            manifest,
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            content_type="application/apply-patch+yaml",
        )

    async def merge(self, kind: Kind, manifest: Manifest) -> dict[str, Any]:
        """Sets the fields that are given, whoever owns them, lists whole; the object as it is then.

        A ``metadata.resourceVersion`` in the manifest is a precondition.
        """
        metadata = manifest["metadata"]
        return await self._write(
            "PATCH",
            path_of(kind, metadata.get("namespace"), metadata["name"]),
            manifest,
            query={"fieldManager": FIELD_MANAGER},
            content_type="application/merge-patch+json",
        )

    async def create(self, kind: Kind, manifest: Manifest) -> dict[str, Any]:
        """The object as made; a conflict when it exists."""
        return await self._write(
            "POST", path_of(kind, manifest["metadata"].get("namespace")), manifest
        )

    async def replace(self, kind: Kind, manifest: Manifest) -> dict[str, Any]:
        """The object as replaced; a conflict when its version is not the one given."""
        metadata = manifest["metadata"]
        return await self._write(
            "PUT", path_of(kind, metadata.get("namespace"), metadata["name"]), manifest
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Deletes that very object, its dependants in the background; gone already is done."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self._write("DELETE", path_of(kind, namespace, name), options)
        except NotFoundError:
            return

    async def _read(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        return await self._call("GET", path, query=query or {}, timeout_s=self._read_timeout_s)

    async def _write(
        self,
        method: str,
        path: str,
        body: Manifest,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Content-Type": content_type}
        self._check()
        return await self._call(
            method,
            path,
            query=query or {},
            body=body,
            headers=headers,
            timeout_s=self._write_timeout_s,
        )

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        timeout_s: float,
        body: Manifest | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        what = f"{method} {path}"
        outcome = "unreachable"
        try:
            async with asyncio.timeout(timeout_s):
                status, content = await self._send(method, path, query, body, headers, timeout_s)
            outcome = f"{status // 100}xx"
        except TimeoutError as error:
            raise UnreachableError(f"{what}: no answer in {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            self._metrics.api_calls.labels(method.lower(), outcome).inc()
        if status not in HTTP_SUCCESS:
            raise error_of(what, status, content)
        return _json_object(what, content)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Manifest | None,
        headers: Mapping[str, str] | None,
        timeout_s: float,
    ) -> tuple[int, bytes]:
        configuration = self._client.configuration
        url = f"{configuration.host}{path}"
        if query:
            url = f"{url}?{urlencode(query)}"
        response = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
            method,
            url,
            headers={
                "Accept": "application/json",
                **self._client.default_headers,
                **await auth_headers(configuration),
                **(headers or {}),
            },
            body=body,
            _request_timeout=aiohttp.ClientTimeout(total=timeout_s),
        )
        return int(response.status), bytes(await response.read())


def group_path(kind: Kind) -> str:
    """The path of a kind's group and version."""
    return f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"


def path_of(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    """The path of a collection, or of one object of it."""
    parts = [group_path(kind)]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(kind.plural)
    if name is not None:
        parts.append(quote(name, safe=""))
    return "/".join(parts)


def _json_object(what: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ClusterError(f"{what}: the answer is not JSON: {content[:100]!r}") from error
    if not isinstance(found, dict):
        raise ClusterError(f"{what}: the answer is no JSON object")
    return found


class ApiLeaseStore:
    """The Lease through the API server, with the calls that the elector makes."""

    def __init__(self, api: ClusterApi, *, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    async def read(self) -> Mapping[str, Any]:
        """The Lease."""
        return await self._api.get(LEASE, self._namespace, self._name)

    async def create(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The Lease as made."""
        return await self._api.create(LEASE, manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The Lease as replaced."""
        return await self._api.replace(LEASE, manifest)


LEASE = Kind(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases")
