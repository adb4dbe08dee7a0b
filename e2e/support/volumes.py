"""Volumes of a cluster that provisions none: folders of the host, made before they are claimed.

Restricted pod security refuses a pod's own hostPath, so they stand in PersistentVolumes.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENGINE_FOLDER = "/opt/engine"
CACHE_FOLDER = "/opt/vllm-cache"
IMAGE_PYTHON = (3, 11)  # Debian 12's
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
    """The folder of this environment's packages, vLLM and torch among them.

    Raises:
        RuntimeError: they are for another Python than the images'.
    """
    if sys.version_info[:2] != IMAGE_PYTHON:
        raise RuntimeError(
            f"pods mount this environment's packages, and the images have Python "
            f"{'.'.join(map(str, IMAGE_PYTHON))}: make the environment with it "
            f"(PYTHON=/path/to/python3.11 make setup)"
        )
    return Path(sysconfig.get_path("purelib"))
