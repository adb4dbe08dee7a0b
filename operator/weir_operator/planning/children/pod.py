"""The pod of a replica: one container under restricted pod security, which drains when it ends."""

from __future__ import annotations

from typing import Any

from weir_operator.planning.children.agent_settings import (
    DATA_DIR,
    HAND_BACK_S,
    MODEL_DIR,
    TOKEN_DIR,
    TOKEN_FILE,
    environment,
    model_claim,
)
from weir_operator.planning.context import AGENT_PORT, COMPONENT, ServiceContext

PRE_STOP_S = 10
"""Time for every proxy to learn that the pod gets no new requests."""
STOP_MARGIN_S = 30
"""Time for the engine to end, after the last online request."""
USER_ID = 10001
TOKEN_LIFE_S = 3600
PROBE_S = 5
LIVENESS_FAILURES = 12
"""How often an agent may fail to answer at least, even where models load in no time."""


def pod_template(context: ServiceContext) -> dict[str, Any]:
    """The pod template before the user's overrides."""
    secrets = context.defaults.image_pull_secrets
    return {
        "metadata": {
            "labels": context.labels,
            "annotations": {"kubectl.kubernetes.io/default-container": COMPONENT},
        },
        "spec": {
            "serviceAccountName": context.name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace_s(context),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": context.selector},
                }
            ],
            "containers": [_container(context)],
            "volumes": _volumes(context),
            **({"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}),
        },
    }


def grace_s(context: ServiceContext) -> int:
    """How long a pod may take to end: past its last online request and the engine's end."""
    return PRE_STOP_S + HAND_BACK_S + context.spec.rollout.drain_seconds + STOP_MARGIN_S


def image(context: ServiceContext) -> str:
    """The image of the agent: the user's, or the operator's for the backend."""
    spec, defaults = context.spec.engine, context.defaults
    given = {"vllm": defaults.vllm_image, "torch": defaults.torch_image}
    return spec.image or given[spec.backend]


def _container(context: ServiceContext) -> dict[str, Any]:
    resources = context.spec.resources.model_dump(by_alias=True, exclude_none=True)
    loading = -(-context.spec.rollout.startup_seconds // PROBE_S)
    return {
        "name": COMPONENT,
        "image": image(context),
        "imagePullPolicy": context.defaults.image_pull_policy,
        "command": ["python3", "-m", "weir_cli", "serve", "agent"],
        "env": environment(context),
        "ports": [{"name": "http", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "startupProbe": _probe("/readyz", failures=loading),
        "readinessProbe": _probe("/readyz", failures=2),
        # The agent restarts its engine itself, and answers nothing while that loads the model.
        "livenessProbe": _probe("/healthz", failures=max(loading, LIVENESS_FAILURES)),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "volumeMounts": _mounts(context),
    }


def _probe(path: str, *, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": PROBE_S,
        "timeoutSeconds": 4,
        "successThreshold": 1,
        "failureThreshold": failures,
    }


def _mounts(context: ServiceContext) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "data", "mountPath": DATA_DIR},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    if context.spec.colocation.enabled:
        mounts.append({"name": "token", "mountPath": TOKEN_DIR, "readOnly": True})
    if model_claim(context) is not None:
        mounts.append({"name": "model", "mountPath": MODEL_DIR, "readOnly": True})
    return mounts


def _volumes(context: ServiceContext) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "data", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if context.spec.colocation.enabled:
        token = {
            "audience": context.defaults.audience,
            "expirationSeconds": TOKEN_LIFE_S,
            "path": TOKEN_FILE,
        }
        volumes.append(
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}}
        )
    claim = model_claim(context)
    if claim is not None:
        volumes.append(
            {
                "name": "model",
                "persistentVolumeClaim": {"claimName": claim, "readOnly": True},
            }
        )
    return volumes
