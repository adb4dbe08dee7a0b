"""Debian packages that the node needs, installed by apt-get where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping

# By the program that shows that the package is there.
NODE: Mapping[str, str] = {
    "runc": "runc",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
}
IMAGES: Mapping[str, str] = {"buildah": "buildah", "debootstrap": "debootstrap"}


class MissingPackageError(RuntimeError):
    """A package is missing and cannot be installed here; the message has the remedy."""


def missing(wanted: Mapping[str, str]) -> list[str]:
    """The packages whose programs are not there."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [package for program, package in wanted.items() if not shutil.which(program, path=path)]


def install(wanted: Mapping[str, str]) -> None:
    """Installs what is missing.

    Raises:
        MissingPackageError: no apt-get, no root, or apt-get failed.
    """
    names = missing(wanted)
    if not names:
        return
    if shutil.which("apt-get") is None:
        raise MissingPackageError(f"install {', '.join(names)} (Debian names): there is no apt-get")
    if os.geteuid() != 0:
        raise MissingPackageError(
            f"run: sudo apt-get update && sudo apt-get install {' '.join(names)}"
        )
    _apt_get(["update"])
    _apt_get(["install", "-y", "--no-install-recommends", *names])


def _apt_get(arguments: Iterable[str]) -> None:
    # RUNLEVEL=1: the packages' own services stay stopped.
    done = subprocess.run(
        ["apt-get", *arguments],
        env={**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-2000:]
        raise MissingPackageError(f"apt-get {' '.join(arguments)} failed:\n{said}")
