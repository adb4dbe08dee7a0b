"""Volumes of a cluster that provisions none: folders of the host, made before they are claimed.

Restricted pod security refuses a pod's own hostPath, so they stand in PersistentVolumes.
"""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENGINE_FOLDER = "/opt/engine"
BYTECODE_FOLDER = "/opt/bytecode"
WRITABLE = 0o777  # pods have users of their own, and hostPath knows no fsGroup


def volume(
    name: str, folder: Path, *, modes: Sequence[str], claim: tuple[str, str] | None = None
) -> dict[str, Any]:
    """A PersistentVolume of a folder, for anybody or for one claim (namespace, name)."""
    reserved = {"claimRef": {"namespace": claim[0], "name": claim[1]}} if claim else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": list(modes),
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": str(folder), "type": "Directory"},
            **reserved,
        },
    }


def claim(name: str, *, mode: str, volume_name: str) -> dict[str, Any]:
    """A claim of one volume by its name."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": [mode],
            "storageClassName": "",
            "volumeName": volume_name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def empty_folder(path: Path) -> Path:
    """A new folder that any pod can write to."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    path.chmod(WRITABLE)
    return path


def engine_packages() -> Path:
    """The folder of this environment's packages, vLLM and torch among them."""
    return Path(sysconfig.get_path("purelib"))
