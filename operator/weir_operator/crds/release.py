"""Before an uninstallation: stops the operator, then frees what only it would have freed.

In this order: an operator that runs would add its finalizer again.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import structlog
from kubernetes.aio.client import (
    ApiClient,
    ApiException,
    ApiextensionsV1Api,
    AppsV1Api,
    CoreV1Api,
    CustomObjectsApi,
)

from weir_operator.crds.apply import CALL_TIMEOUT_S, LOOK_EVERY_S, manifests
from weir_operator.planning.kinds import BATCH_JOB, FINALIZER

PAGE = 500
NOT_FOUND = 404
CONFLICT = 409
TRIES = 5
MERGE = "application/merge-patch+json"
# One that was evicted stays until its ReplicaSet goes, after us, and writes nothing more.
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"

_log = structlog.get_logger(__name__)


class StillRunningError(Exception):
    """The operator's pods, or a CRD, have not gone in time; the message names them."""


async def stop_operator(
    client: ApiClient, *, namespace: str, deployment: str, within_s: float
) -> None:
    """Scales the operator to nothing and waits for its last pod that runs; a gone one is stopped.

    Raises:
        StillRunningError: pods are left after ``within_s`` seconds.
        ApiException: the API server refuses; its message says what.
    """
    apps, core = AppsV1Api(client), CoreV1Api(client)
    try:
        scale = await apps.patch_namespaced_deployment_scale(
            deployment,
            namespace,
            {"spec": {"replicas": 0}},
            _content_type=MERGE,
            _request_timeout=CALL_TIMEOUT_S,
        )
    except ApiException as error:
        if error.status != NOT_FOUND:
            raise
        _log.info("operator_gone_already", deployment=deployment)
        return
    selector = _json(client, scale)["status"]["selector"]
    left: list[str] = []
    try:
        async with asyncio.timeout(within_s):
            while True:
                pods = await core.list_namespaced_pod(
                    namespace,
                    label_selector=selector,
                    field_selector=RUNNING,
                    _request_timeout=CALL_TIMEOUT_S,
                )
                left = [item["metadata"]["name"] for item in _json(client, pods)["items"]]
                if not left:
                    break
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise StillRunningError(
            f"pods of the operator are still there after {within_s:g} s: {', '.join(left)}"
        ) from None
    _log.info("operator_stopped", deployment=deployment)


def _json(client: ApiClient, answer: object) -> dict[str, Any]:
    return cast("dict[str, Any]", client.sanitize_for_serialization(answer))  # type: ignore[no-untyped-call]


async def strip_finalizers(client: ApiClient) -> int:
    """Takes our finalizer off every BatchJob of the cluster; their number.

    Finalizers of others stay. Without the CRD there is nothing to do.

    Raises:
        ApiException: the API server refuses; its message says what.
    """
    api = CustomObjectsApi(client)
    stripped, token = 0, ""
    while True:
        try:
            found = await api.list_cluster_custom_object(
                BATCH_JOB.group,
                BATCH_JOB.version,
                BATCH_JOB.plural,
                limit=PAGE,
                _continue=token,
                _request_timeout=CALL_TIMEOUT_S,
            )
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise
            return stripped
        page = cast("dict[str, Any]", found)
        for job in page["items"]:
            if FINALIZER in (job["metadata"].get("finalizers") or ()):
                await _strip(api, job)
                stripped += 1
        token = page["metadata"].get("continue") or ""
        if not token:
            _log.info("finalizers_stripped", batchjobs=stripped)
            return stripped


async def _strip(api: CustomObjectsApi, job: dict[str, Any]) -> None:
    """One BatchJob; read again when somebody else changes it meanwhile.

    Raises:
        ApiException: the API server refuses, or it changes all the time.
    """
    place = (BATCH_JOB.group, BATCH_JOB.version)
    for attempt in range(TRIES):
        metadata = job["metadata"]
        where = (*place, metadata["namespace"], BATCH_JOB.plural, metadata["name"])
        kept = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
        body = {"metadata": {"finalizers": kept, "resourceVersion": metadata["resourceVersion"]}}
        try:
            await api.patch_namespaced_custom_object(
                *where, body, _content_type=MERGE, _request_timeout=CALL_TIMEOUT_S
            )
        except ApiException as error:
            if error.status == NOT_FOUND:
                return
            if error.status != CONFLICT or attempt == TRIES - 1:
                raise
            read = await api.get_namespaced_custom_object(*where, _request_timeout=CALL_TIMEOUT_S)
            job = cast("dict[str, Any]", read)
        else:
            return


async def delete_crds(client: ApiClient, *, within_s: float) -> None:
    """Deletes the CRDs, and with them every object of their kinds; waits until they are gone.

    Raises:
        StillRunningError: one is left after ``within_s`` seconds: an object of it has a
            finalizer of somebody else.
        ApiException: the API server refuses; its message says what.
    """
    api = ApiextensionsV1Api(client)
    left = [crd["metadata"]["name"] for crd in manifests()]
    try:
        async with asyncio.timeout(within_s):
            while left:
                left = [name for name in left if not await _deleted(api, name)]
                await asyncio.sleep(LOOK_EVERY_S if left else 0)
    except TimeoutError:
        raise StillRunningError(
            f"still there after {within_s:g} s: {', '.join(left)} (do their objects have "
            "finalizers of somebody else?)"
        ) from None
    _log.info("crds_deleted")


async def _deleted(api: ApiextensionsV1Api, name: str) -> bool:
    """Asks for the deletion; whether the CRD is gone.

    Raises:
        ApiException: the API server refuses.
    """
    try:
        await api.delete_custom_resource_definition(name, _request_timeout=CALL_TIMEOUT_S)
    except ApiException as error:
        if error.status == NOT_FOUND:
            return True
        raise
    return False
