"""Images written as docker-archives: of one static program, or of a whole file system."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NOBODY = 65535
FORMAT = 2
"""Raised when archives are written in another way, so that kept ones are made anew."""


def of_program(archive: Path, *, name: str, program: Path) -> Path:
    """Writes an image ``name`` that runs ``program``, as a user without rights; its path."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, mode="w") as tar:
        _add(tar, program.name, program.read_bytes(), mode=0o755)
    config = {"Entrypoint": [f"/{program.name}"], "User": f"{NOBODY}:{NOBODY}"}
    return _write(archive, name=name, layer=layer, config=config)


def of_tree(archive: Path, *, name: str, root: Path) -> Path:
    """Writes an image ``name`` of everything below ``root``, owners included; its path.

    Raises:
        CalledProcessError: a file cannot be read.
    """
    layer = archive.with_suffix(".layer")
    command: list[str | Path] = [
        "tar",
        "--numeric-owner",
        "--one-file-system",
        "-C",
        root,
        "-cf",
        layer,
        ".",
    ]
    subprocess.run(command, check=True, capture_output=True)
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return _write(archive, name=name, layer=layer, config={"Env": [f"PATH={path}"]})


def image_id(archive: Path) -> str:
    """The id by which storages know the image of an archive: the digest of its configuration.

    Raises:
        KeyError: the archive is none of this module's.
    """
    with tarfile.open(archive) as tar:
        config = tar.extractfile("config.json")
        if config is None:
            raise KeyError(f"{archive} has no configuration")
        return hashlib.sha256(config.read()).hexdigest()


def _write(archive: Path, *, name: str, layer: Path, config: Mapping[str, object]) -> Path:
    """Writes the archive and removes the layer's own file."""
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    machine = platform.machine()
    image = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": f"weir {name}"}],  # buildah counts one entry a layer
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    unfinished = archive.with_suffix(".new")
    with tarfile.open(unfinished, mode="w") as tar:
        _add(tar, "config.json", json.dumps(image).encode())
        tar.add(layer, arcname="layer.tar")
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()
    return unfinished.replace(archive)


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = mode
    tar.addfile(member, io.BytesIO(content))
