"""Merges overrides into a pod template, as a strategic merge patch would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
}
"""Lists whose items are known by a key; every other list is replaced as a whole."""

VOLUME_SOURCES = frozenset({
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi",
    "downwardAPI", "emptyDir", "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk",
    "gitRepo", "glusterfs", "hostPath", "image", "iscsi", "nfs", "persistentVolumeClaim",
    "photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd", "scaleIO", "secret",
    "storageos", "vsphereVolume",
})  # fmt: skip
"""What a pod's volume may be (the fields of core/v1's VolumeSource)."""

ONE_OF = (
    frozenset({"value", "valueFrom"}),
    frozenset({"httpGet", "exec", "tcpSocket", "grpc", "sleep"}),
    VOLUME_SOURCES,
)
"""Fields of which an object has one: given another, ours goes."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` merged in: null removes, maps merge, keyed lists by their key."""
    result = {
        name: value
        for name, value in base.items()
        if not any(name in group and group & over.keys() - {name} for group in ONE_OF)
        or name in over
    }
    for name, value in over.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _value(name, result.get(name), value)
    return result


def _value(name: str, base: Any, over: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return merged(base, over)
    key = MERGE_KEYS.get(name)
    if key is not None and _keyed(base, key) and _keyed(over, key):
        return _list(base, over, key)
    if isinstance(over, Mapping):
        return merged({}, over)
    return over


def _keyed(value: object, key: str) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, Mapping) and key in item for item in value
    )


def _list(base: Sequence[Any], over: Sequence[Any], key: str) -> list[Any]:
    """Items of ``base`` in their place, changed where ``over`` has the key; then the new ones."""
    changes = {item[key]: item for item in over}
    result = [merged(item, changes.get(item[key], {})) for item in base]
    known = {item[key] for item in base}
    return result + [merged({}, item) for item in changes.values() if item[key] not in known]
