"""Images written as docker-archives: what builders and storages read in them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from e2e.cluster import archive
from e2e.cluster.images import PYTHON, System


def read(path: Path, name: str) -> bytes:
    with tarfile.open(path) as tar:
        member = tar.extractfile(name)
        assert member is not None
        return member.read()


def test_an_image_has_a_history_entry_for_its_layer_and_the_id_that_storages_give_it(
    tmp_path: Path,
) -> None:
    """buildah refuses to build on an image whose history and layers differ in number."""
    program = tmp_path / "pause"
    program.write_bytes(b"program")
    path = archive.of_program(tmp_path / "pause.tar", name="localhost/pause:1", program=program)
    config = read(path, "config.json")
    parsed: dict[str, Any] = json.loads(config)
    layer = hashlib.sha256(read(path, "layer.tar")).hexdigest()
    assert parsed["rootfs"]["diff_ids"] == [f"sha256:{layer}"]
    assert len(parsed["history"]) == 1
    assert archive.image_id(path) == hashlib.sha256(config).hexdigest()


def test_a_base_is_made_anew_when_anything_of_it_changes() -> None:
    other = System(name=PYTHON.name, packages=("python3",), user=PYTHON.user, uid=PYTHON.uid)
    assert other.digest != PYTHON.digest
