"""Merges overrides into a pod template, as a strategic merge patch would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SPREAD = "topologySpreadConstraints"
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
    SPREAD: "topologyKey",
    "hostAliases": "ip",
}
"""Lists whose items are known by a key; every other list is replaced as a whole."""
BESIDE = {"ports": "protocol", SPREAD: "whenUnsatisfiable"}
"""What tells items of one key apart."""

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
    if name in MERGE_KEYS and _keyed(name, base) and _keyed(name, over):
        return _list(name, base, over)
    if isinstance(over, Mapping):
        return merged({}, over)
    return over


def _keyed(name: str, value: object) -> bool:
    """Whether all items can be told apart. Others the API server refuses, and names the field."""
    return isinstance(value, list) and all(
        isinstance(item, Mapping)
        and isinstance(item.get(MERGE_KEYS[name]), str | int)
        and isinstance(item.get(BESIDE.get(name)), str | None)
        for item in value
    )


def _list(name: str, base: Sequence[Any], over: Sequence[Any]) -> list[Any]:
    """Items of ``base`` in their place, changed where ``over`` has the key; then the new ones.

    Of several constraints on one topology the first is the change.
    """
    known = {_identity(name, item) for item in base}
    changes: dict[Any, Any] = {}
    new: dict[Any, Any] = {}
    for item in over:
        key = _identity(name, item)
        if key in known and (key not in changes or name != SPREAD):
            changes[key] = item
        else:
            new[key, item.get("whenUnsatisfiable") if name == SPREAD else None] = item
    result = [merged(item, changes.get(_identity(name, item), {})) for item in base]
    return result + [merged({}, item) for item in new.values()]


def _identity(name: str, item: Mapping[str, Any]) -> object:
    """What an item is known by: a port may be open to two protocols."""
    key = item[MERGE_KEYS[name]]
    return (key, item.get("protocol", "TCP")) if name == "ports" else key
