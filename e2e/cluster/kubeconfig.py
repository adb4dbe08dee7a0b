"""kubeconfig files: where a cluster is and as whom to speak to it. JSON, which is YAML too."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An API server's URL and the certificate of the authority that vouches for it."""

    url: str
    authority: Path

    def with_certificate(self, path: Path, certificate: Path, key: Path) -> Path:
        """Writes the kubeconfig of whoever holds a client certificate; its path."""
        user = {
            "client-certificate-data": _encoded(certificate),
            "client-key-data": _encoded(key),
        }
        return self._write(path, user)

    def with_token(self, path: Path, token: str, *, namespace: str) -> Path:
        """Writes the kubeconfig of whoever holds a token, with a namespace of its own; its path."""
        return self._write(path, {"token": token}, namespace=namespace)

    def _write(self, path: Path, user: Mapping[str, str], *, namespace: str = "default") -> Path:
        cluster = {"server": self.url, "certificate-authority-data": _encoded(self.authority)}
        context = {"cluster": "weir", "user": "user", "namespace": namespace}
        path.touch(mode=0o600)
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "weir",
                    "contexts": [{"name": "weir", "context": context}],
                    "clusters": [{"name": "weir", "cluster": cluster}],
                    "users": [{"name": "user", "user": dict(user)}],
                },
                indent=1,
            )
        )
        return path


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
