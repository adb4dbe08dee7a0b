"""kubectl as a function: what it was asked, what it said, and objects as plain dictionaries."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Manifest = Mapping[str, Any]


class KubectlError(RuntimeError):
    """kubectl ended with an error; the message has the command and what it said."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one call printed, and its exit status."""

    arguments: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked."""
        return self.status == 0

    def json(self) -> dict[str, Any]:
        """What it printed, as an object. Raises TypeError when that is no JSON object."""
        found = json.loads(self.stdout)
        if not isinstance(found, dict):
            raise TypeError(f"kubectl {' '.join(self.arguments)}: printed no JSON object")
        return found

    def checked(self) -> Result:
        """The same result. Raises KubectlError when the call failed."""
        if not self.ok:
            raise KubectlError(f"kubectl {' '.join(self.arguments)}: {self.stderr.strip()}")
        return self


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """kubectl with a kubeconfig, and the namespace that calls use unless they name another."""

    binary: Path
    kubeconfig: Path
    namespace: str | None = None
    timeout_s: float = 120.0

    def try_run(self, *arguments: str | Path, stdin: str | None = None) -> Result:
        """What a call says, whether or not it succeeds.

        Raises:
            KubectlError: no answer within `timeout_s`.
        """
        words = tuple(str(argument) for argument in arguments)
        inside = () if self.namespace is None else ("--namespace", self.namespace)
        try:
            done = subprocess.run(
                [self.binary, "--kubeconfig", self.kubeconfig, *inside, *words],
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=self.timeout_s,
                # It would look for garbage while it reads an API server's schemas, and then ends.
                env={**os.environ, "GOGC": "off"},
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(
                f"kubectl {' '.join(words)}: no answer in {error.timeout} s"
            ) from None
        return Result(
            arguments=words, status=done.returncode, stdout=done.stdout, stderr=done.stderr
        )

    def run(self, *arguments: str | Path, stdin: str | None = None) -> Result:
        """What a call says. Raises KubectlError when it fails."""
        return self.try_run(*arguments, stdin=stdin).checked()

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object; None when there is none. Raises KubectlError on any other failure."""
        found = self.run("get", kind, name, "--ignore-not-found", "--output=json")
        return found.json() if found.stdout.strip() else None

    def list(self, kind: str, *options: str) -> list[dict[str, Any]]:
        """The objects of a kind. Raises KubectlError when the call fails."""
        items = self.run("get", kind, "--output=json", *options).json()["items"]
        return [dict(item) for item in items]

    def apply(self, *manifests: Manifest, options: Sequence[str] = ()) -> Result:
        """Applies objects, as the option says (``--server-side``, ``--dry-run=server``, …).

        Raises:
            KubectlError: the API server refuses one; the message is the server's.
        """
        return self.try_apply(*manifests, options=options).checked()

    def try_apply(self, *manifests: Manifest, options: Sequence[str] = ()) -> Result:
        """Applies objects; the result says whether the API server took them."""
        objects = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        return self.try_run("apply", "-f", "-", *options, stdin=json.dumps(objects))

    def inside(self, namespace: str) -> Kubectl:
        """The same, for another namespace."""
        return Kubectl(
            binary=self.binary,
            kubeconfig=self.kubeconfig,
            namespace=namespace,
            timeout_s=self.timeout_s,
        )
