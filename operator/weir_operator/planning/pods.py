"""Pods of an LLMService: which may speak for it, and what keeps one from serving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weir_operator.planning.kinds import SERVICE_LABEL
from weir_operator.planning.types import Manifest, PodIdentity

HASH_LABEL = "pod-template-hash"
ENDED = frozenset({"Succeeded", "Failed"})
MOST_CHARS = 600
"""Of what the kubelet says: a condition holds them with the longest name of a pod before them."""
STUCK = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)


def registered(pods: Iterable[Manifest], *, name: str) -> tuple[PodIdentity, ...]:
    """The pods that may sync for the service ``name``, terminating ones included.

    A label alone proves nothing: a pod counts when the ReplicaSet of the service's Deployment
    controls it, and when it runs as the service's own ServiceAccount.
    """
    found = [
        PodIdentity(uid=pod["metadata"]["uid"], name=pod["metadata"]["name"])
        for pod in pods
        if _is_replica(pod, name) and (pod.get("status") or {}).get("phase") not in ENDED
    ]
    return tuple(sorted(found, key=lambda pod: pod.name))


def trouble(pods: Iterable[Manifest]) -> str | None:
    """What keeps the first pod that is stuck from serving; None when none says."""
    for pod in sorted(pods, key=lambda item: str(item["metadata"]["name"])):
        said = _unschedulable(pod) or _waiting(pod)
        if said:
            return f"pod {pod['metadata']['name']}: {said}"
    return None


def _is_replica(pod: Manifest, name: str) -> bool:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    owner: Mapping[str, Any] = next(
        (item for item in metadata.get("ownerReferences") or () if item.get("controller")), {}
    )
    return (
        labels.get(SERVICE_LABEL) == name
        and owner.get("kind") == "ReplicaSet"
        and owner.get("name") == f"{name}-{labels.get(HASH_LABEL)}"
        and (pod.get("spec") or {}).get("serviceAccountName") == name
    )


def _unschedulable(pod: Manifest) -> str | None:
    for item in (pod.get("status") or {}).get("conditions") or ():
        if item["type"] == "PodScheduled" and item["status"] == "False":
            return f"{item.get('reason', 'Unschedulable')}: {item.get('message', '')}"
    return None


def _waiting(pod: Manifest) -> str | None:
    status = pod.get("status") or {}
    for item in [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]:
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK:
            told = _shortened(str(waiting.get("message") or ""))
            why = f"{waiting['reason']}: {told}" if told else waiting["reason"]
            return f"container {item['name']}: {why}"
    return None


def _shortened(message: str) -> str:
    """The message in one line of `MOST_CHARS` at most.

    It is cut in the middle: which image it is about stands at the beginning, and why at the end.
    """
    line = " ".join(message.split())
    if len(line) <= MOST_CHARS:
        return line
    half = (MOST_CHARS - 1) // 2
    return f"{line[:half]}…{line[-half:]}"
