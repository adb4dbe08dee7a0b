"""Images for a cluster without a registry: base systems from Debian, ours built by buildah.

Everything ends as a docker-archive in `.cache/images`, which the node imports. Bases are made once;
what is built on them is built again in every run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import archive, packages
from e2e.cluster.binaries import ROOT

CACHE = ROOT / ".cache" / "images"
SUITE = "bookworm"
CERTIFICATES = Path("/etc/ssl/certs")


class ImageBuildError(RuntimeError):
    """An image could not be made; the message has the end of what the program said."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A small Debian system: its packages, and a user that pods can run as."""

    name: str
    packages: tuple[str, ...]
    user: str
    uid: int

    @property
    def digest(self) -> str:
        """What changes when anything here does."""
        return hashlib.sha256(f"{archive.FORMAT} {SUITE} {self}".encode()).hexdigest()[:12]


PYTHON = System(
    name="localhost/python:3.11",
    # vLLM's C extension needs libnuma, and without it fails to import without a word.
    packages=("python3", "python3-venv", "ca-certificates", "libnuma1"),
    user="python",
    uid=10_000,
)
STORES = System(
    name="localhost/stores:1",
    packages=("postgresql", "redis-server"),
    user="stores",  # initdb refuses a user without a name
    uid=999,
)


class Images:
    """The images of one checkout, in one folder."""

    def __init__(self, cache: Path = CACHE) -> None:
        """``cache`` keeps archives, and buildah's own storage."""
        self._cache = cache

    def system(self, system: System) -> Path:
        """The archive of a base system, made when it is not there yet.

        Raises:
            ImageBuildError: debootstrap failed: most often no Debian mirror can be reached.
            MissingPackageError: debootstrap is missing and cannot be installed.
        """
        packages.install(packages.IMAGES)
        self._cache.mkdir(parents=True, exist_ok=True)
        path = self._cache / f"{system.user}-{system.digest}.tar"
        if path.exists():
            return path
        print(f"making {system.name}", file=sys.stderr, flush=True)
        root = self._cache / f"{system.user}.root"
        shutil.rmtree(root, ignore_errors=True)
        try:
            included = ",".join(system.packages)
            _run(["debootstrap", "--variant=minbase", f"--include={included}", SUITE, root])
            _add_user(root, system)
            for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
                shutil.rmtree(root / folder, ignore_errors=True)
            return archive.of_tree(path, name=system.name, root=root)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits for builders in other processes, and removes what a killed one left mounted."""
        self._cache.mkdir(parents=True, exist_ok=True)
        with (self._cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            packages.install(packages.IMAGES)
            self._buildah(["rm", "--all"])
            yield

    def build(
        self,
        name: str,
        *,
        dockerfile: Path,
        base: System,
        arguments: Mapping[str, str] | None = None,
    ) -> Path:
        """The archive of an image built from a Dockerfile on a base system.

        Raises:
            ImageBuildError: the build failed; the message has its end.
        """
        source = self.system(base)
        known = self._buildah(["images", "--quiet", "--no-trunc", base.name], check=False)
        if known.strip() != f"sha256:{archive.image_id(source)}":  # none, or one of earlier code
            self._buildah(["pull", f"docker-archive:{source}"])
        options = {"BASE": base.name, **(arguments or {})}
        output = self._cache / f"{dockerfile.stem}.tar"
        output.unlink(missing_ok=True)
        self._buildah(
            [
                *("bud", "--isolation=chroot", "--pull-never", "--layers", "--force-rm"),
                *("--tag", name),
                *(f"--build-arg={key}={value}" for key, value in options.items()),
                *self._certificates(),
                *("--file", str(dockerfile), str(ROOT)),
            ]
        )
        self._buildah(["push", name, f"docker-archive:{output}:{name}"])
        return output

    def _certificates(self) -> list[str]:
        """Options by which pip trusts what this machine trusts, without a trace in the image."""
        configuration = self._cache / "pip.conf"
        configuration.write_text(f"[global]\ncert = {CERTIFICATES / 'ca-certificates.crt'}\n")
        return [
            f"--volume={CERTIFICATES}:{CERTIFICATES}:ro",
            f"--volume={configuration}:/etc/pip.conf:ro",
        ]

    def _buildah(self, arguments: Sequence[str], *, check: bool = True) -> str:
        storage = ["--storage-driver=overlay", f"--root={self._cache / 'storage'}"]
        return _run(
            ["buildah", *storage, f"--runroot={self._cache / 'run'}", *arguments], check=check
        )


def _add_user(root: Path, system: System) -> None:
    line = f"{system.user}:x:{system.uid}:{system.uid}::/:/usr/sbin/nologin\n"
    with (root / "etc" / "passwd").open("a") as file:
        file.write(line)
    with (root / "etc" / "group").open("a") as file:
        file.write(f"{system.user}:x:{system.uid}:\n")


def _run(command: Sequence[str | Path], *, check: bool = True) -> str:
    done = subprocess.run(
        command,
        # RUNLEVEL=1: packages start no service while they are installed.
        env={**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode != 0:
        said = (done.stdout + done.stderr)[-3000:]
        raise ImageBuildError(f"{' '.join(map(str, command))} failed:\n{said}")
    return done.stdout
