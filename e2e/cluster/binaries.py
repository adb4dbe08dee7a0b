"""Where the cluster's programs come from: a folder that is given, the machine, or Go modules.

It finds and builds programs; it starts none. What is built lands in `.cache/kubernetes/bin` and is
built again only when its tools module changed. `make binaries` calls this file.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / "e2e" / "tools"
CACHE = ROOT / ".cache" / "kubernetes"
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
KUBERNETES = "k8s.io/kubernetes"

Group = Literal["api", "helm", "node"]


class NoBinaryError(RuntimeError):
    """A program can be had from nowhere; the message says what was tried and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program: the package it is built from, and the tools module that pins its version."""

    name: str
    module: str
    package: str
    group: Group
    from_machine: bool = False  # whether any version on PATH will do


def _kubernetes(name: str, group: Group, *, from_machine: bool = False) -> Program:
    return Program(
        name=name,
        module="kubernetes",
        package=f"{KUBERNETES}/cmd/{name}",
        group=group,
        from_machine=from_machine,
    )


def _containerd(name: str) -> Program:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    return Program(name=name, module="containerd", package=package, group="node")


def _cni(path: str) -> Program:
    package = f"github.com/containernetworking/plugins/plugins/{path}"
    return Program(name=path.rpartition("/")[2], module="cni", package=package, group="node")


PROGRAMS = {
    program.name: program
    for program in (
        Program(name="etcd", module="etcd", package="go.etcd.io/etcd/server/v3", group="api"),
        _kubernetes("kube-apiserver", "api"),
        _kubernetes("kube-controller-manager", "api"),
        # Its version may differ from the server's: every command used here is older than either.
        _kubernetes("kubectl", "api", from_machine=True),
        Program(
            name="helm",
            module="helm",
            package="helm.sh/helm/v3/cmd/helm",
            group="helm",
        ),
        _kubernetes("kube-scheduler", "node"),
        _kubernetes("kubelet", "node"),
        _kubernetes("kube-proxy", "node"),
        *map(_containerd, ("containerd", "containerd-shim-runc-v2", "ctr")),
        Program(
            name="coredns", module="coredns", package="weir.dev/e2e/tools/coredns", group="node"
        ),
        Program(name="pause", module="pause", package="weir.dev/e2e/tools/pause", group="node"),
        *map(_cni, ("main/bridge", "main/loopback", "ipam/host-local", "meta/portmap")),
    )
}


class Binaries:
    """Finds programs in this order: the given folder of assets, the machine, a build."""

    def __init__(
        self,
        *,
        cache: Path = CACHE,
        modules: Path = MODULES,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """``cache`` receives what is built; ``environment`` may name a folder of assets.

        Raises:
            NoBinaryError: KUBEBUILDER_ASSETS names no folder.
        """
        self.folder = cache / "bin"
        self._modules = modules
        self._environment = environment
        named = environment.get(ASSETS_VARIABLE)
        self._assets = Path(named) if named else None
        if self._assets is not None and not self._assets.is_dir():
            raise NoBinaryError(
                f"{ASSETS_VARIABLE}={named} is no folder: name one that holds kube-apiserver and "
                "etcd, or unset it to have them built"
            )

    def find(self, name: str) -> Path | None:
        """The path of a program that is there already; None when it has to be built."""
        program = PROGRAMS[name]
        if self._assets is not None and (self._assets / name).is_file():
            return self._assets / name
        built = self.folder / name
        if built.is_file() and self._stamp(program).is_file():
            return built
        if program.from_machine:
            on_path = shutil.which(name, path=self._environment.get("PATH"))
            return Path(on_path) if on_path else None
        return None

    def path(self, name: str) -> Path:
        """The path of a program that is there already.

        Raises:
            NoBinaryError: it has to be built first, with `make binaries`.
        """
        found = self.find(name)
        if found is None:
            group = PROGRAMS[name].group
            raise NoBinaryError(
                f"{name} is neither in {ASSETS_VARIABLE} nor built yet: run "
                f"`python -m e2e.cluster.binaries {group}` (once, some minutes)"
            )
        return found

    def provide(self, name: str) -> Path:
        """The path of a program, built from its Go module when it is nowhere.

        Raises:
            NoBinaryError: it cannot be built; the message names the reason.
        """
        with self._lock():
            return self.find(name) or self._build(PROGRAMS[name])

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # two test runs share one checkout
            yield

    def _stamp(self, program: Program) -> Path:
        """A file that exists when the program was built from the module as it is now."""
        digest = hashlib.sha256()
        for path in sorted((self._modules / program.module).iterdir()):
            digest.update(path.read_bytes())
        return self.folder.parent / "stamps" / f"{program.name}-{digest.hexdigest()[:16]}"

    def _build(self, program: Program) -> Path:
        output = self.folder / program.name
        module = self._modules / program.module
        go = self._go(program)
        command: list[str | Path] = [
            *(go, "build", "-trimpath", "-buildvcs=false", "-o", output),
            *("-ldflags", " ".join(("-s -w", *_version_flags(module / "go.mod")))),
            program.package,
        ]
        print(f"building {program.name} from {program.package}", file=sys.stderr, flush=True)
        started_s = time.monotonic()
        done = subprocess.run(
            command,
            cwd=module,
            env={**self._environment, "CGO_ENABLED": "0", "GOWORK": "off"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise NoBinaryError(
                f"{program.name} is not in {ASSETS_VARIABLE}, and `go build {program.package}` "
                f"failed:\n{done.stderr[-4000:]}"
            )
        stamp = self._stamp(program)
        stamp.parent.mkdir(exist_ok=True)
        for old in stamp.parent.glob(f"{program.name}-*"):
            if old.name.removeprefix(f"{program.name}-").isalnum():
                old.unlink()
        stamp.touch()
        print(f"{program.name}: {time.monotonic() - started_s:.0f} s", file=sys.stderr, flush=True)
        return output

    def _go(self, program: Program) -> str:
        go = shutil.which("go", path=self._environment.get("PATH"))
        if go is None:
            wanted = re.search(
                r"^go (\S+)$", (self._modules / program.module / "go.mod").read_text(), re.MULTILINE
            )
            raise NoBinaryError(
                f"{program.name} cannot be had: {ASSETS_VARIABLE} names no folder that holds it, "
                f"and go is not installed to build it. Install Go {wanted and wanted[1]} or later, "
                f"or point {ASSETS_VARIABLE} at a folder with {program.name}"
            )
        return go


def _version_flags(go_mod: Path) -> list[str]:
    """Linker flags that make Kubernetes report its version: v0.0.0 is mistrusted by clients."""
    text = go_mod.read_text()
    pinned = re.search(rf"^\s*{KUBERNETES} (v(\d+)\.(\d+)\.\S+)", text, re.MULTILINE)
    if pinned is None:
        return []
    values = {"gitVersion": pinned[1], "gitMajor": pinned[2], "gitMinor": pinned[3]}
    return [f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items()]


def main(arguments: Sequence[str]) -> int:
    """Provides the programs of the named groups; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster.binaries", description=__doc__)
    groups = sorted({program.group for program in PROGRAMS.values()})
    parser.add_argument("groups", nargs="+", choices=groups, help="which programs")
    wanted = parser.parse_args(arguments).groups
    try:
        binaries = Binaries()
        for program in PROGRAMS.values():
            if program.group in wanted:
                binaries.provide(program.name)
    except NoBinaryError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
