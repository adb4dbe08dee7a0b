"""What can go wrong with a cluster, as functions: each returns when the fault is over."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from e2e.cluster.api_server import ApiServer
from e2e.cluster.cgroup import ControlGroup
from e2e.cluster.footprint import GROUP
from e2e.cluster.kubectl import Kubectl

CONTAINERD = "containerd://"


def crash(pod: Mapping[str, Any]) -> None:
    """Ends every process of a pod's container by SIGKILL; the kubelet starts it again.

    Raises:
        LookupError: no process of the pod runs.
    """
    (status,) = pod["status"]["containerStatuses"]
    container = str(status["containerID"]).removeprefix(CONTAINERD)
    if not ControlGroup(GROUP).kill_container(container):
        raise LookupError(f"pod {pod['metadata']['name']} has no process: {container}")


def delete(kubectl: Kubectl, pod: Mapping[str, Any], *, force: bool = False) -> None:
    """Deletes a pod; its controller makes another. ``force``: without time to end."""
    options = ("--force", "--grace-period=0") if force else ()
    kubectl.run("delete", "pod", pod["metadata"]["name"], "--wait=false", *options)


def without_api_server(api: ApiServer, *, seconds: float) -> None:
    """Kills the API server, and starts it again after a while; returns when it serves.

    The controllers end and come back with it, as those do that elect a leader by its Leases.
    """
    api.server.kill()
    api.controllers.kill()
    time.sleep(seconds)
    for component in (api.server, api.controllers):
        component.start()
        component.wait_ready()


def leader(system: Kubectl) -> str:
    """The operator pod that holds the Lease; empty when none does."""
    lease = system.get("lease", "weir-operator")
    # The identity is POD_PID_RANDOM, and a pod's name has no underscore.
    return "" if lease is None else str(lease["spec"].get("holderIdentity", "")).split("_")[0]


def led_since(system: Kubectl) -> datetime:
    """When the operator pod that holds the Lease took it. Raises LookupError when none does."""
    lease = system.get("lease", "weir-operator")
    if lease is None or "acquireTime" not in lease["spec"]:
        raise LookupError(f"nobody leads: {lease}")
    return datetime.fromisoformat(lease["spec"]["acquireTime"])


def started_in_s(pod: Mapping[str, Any]) -> float:
    """How long the container of a ready pod took from its latest start until it was ready."""
    (status,) = pod["status"]["containerStatuses"]
    (ready,) = (item for item in pod["status"]["conditions"] if item["type"] == "Ready")
    begun = datetime.fromisoformat(status["state"]["running"]["startedAt"])
    return (datetime.fromisoformat(ready["lastTransitionTime"]) - begun).total_seconds()


def pods(kubectl: Kubectl, component: str) -> list[dict[str, Any]]:
    """The ready pods of one component of the chart, the oldest first."""
    found = kubectl.list("pods", f"--selector=app.kubernetes.io/component={component}")
    ready = [
        pod
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
        and all(status["ready"] for status in pod["status"].get("containerStatuses", ()))
    ]
    return sorted(ready, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
