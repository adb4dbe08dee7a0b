"""The chart as tests read it: rendered by the real helm, as plain objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.chart.rbac_table import Row

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "weir"
KUBERNETES = "1.36.3"
MONITORING = "monitoring.coreos.com/v1"
Manifest = dict[str, Any]

EXTERNAL: Mapping[str, Any] = {
    "database": {"existingSecret": "postgres"},
    "redis": {"existingSecret": "redis"},
    "files": {"url": "s3://bucket/weir", "existingSecret": "store"},
    "adminKey": {"existingSecret": "admin"},
}
"""What a production installation sets."""
EVERYTHING: Mapping[str, Any] = {
    "uninstall": {"deleteData": True, "deleteCRDs": True},
    "images": {"registry": "registry.test/team", "pullSecrets": [{"name": "pull"}]},
    "operator": {
        "priorityClassName": "system-cluster-critical",
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"pool": "system"},
        "settings": {"namespaces": ["search", "ads"]},
        "podAnnotations": {"team": "ml"},
    },
    "controlplane": {"settings": {"chunk_lines": 16, "poll_s": 0.5, "models": ["a", "b"]}},
    "networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1/32"]}},
    "monitoring": {
        "podMonitor": {"create": "always", "labels": {"release": "prometheus"}},
        "prometheusRule": {"create": "always"},
    },
}
"""As many options as go together."""
VALUES = {"default": {}, "external": EXTERNAL, "everything": EVERYTHING}


class HelmError(RuntimeError):
    """helm refused; the message is its own."""


@dataclass(frozen=True, kw_only=True)
class Helm:
    """The helm program; ``kubeconfig`` where it speaks to a cluster."""

    binary: Path
    folder: Path
    kubeconfig: Path | None = None

    def run(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """What a call prints. Raises HelmError when it fails."""
        file = self.folder / "values.json"
        file.write_text(json.dumps(values or {}))
        given = ["--values", file] if values is not None else []
        where = ["--kubeconfig", self.kubeconfig] if self.kubeconfig else []
        command = [str(word) for word in (self.binary, *arguments, *given, *where)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HelmError(done.stderr)
        return done.stdout

    def render(
        self, values: Mapping[str, Any] | None = None, *, apis: Sequence[str] = ()
    ) -> list[Manifest]:
        """Every object of the chart, hooks included."""
        known = [part for api in apis for part in ("--api-versions", api)]
        text = self.run(
            *("template", "weir", CHART, "--namespace", "weir-system"),
            *("--kube-version", KUBERNETES, *known),
            values=values or {},
        )
        return [item for item in yaml.safe_load_all(text) if item]


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    """The objects of these kinds."""
    return [item for item in manifests if item["kind"] in kinds]


def named(manifests: Sequence[Manifest], kind: str, name: str) -> Manifest:
    """The one object of that kind and name."""
    (found,) = (item for item in of_kind(manifests, kind) if item["metadata"]["name"] == name)
    return found


def pods(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod as a manifest of its own, with the name of what it belongs to."""
    for item in manifests:
        name = f"{item['kind']}/{item['metadata']['name']}"
        if item["kind"] == "Pod":
            yield name, item
        template = (item.get("spec") or {}).get("template")
        if template:
            yield name, template


def rules(manifests: Sequence[Manifest]) -> set[Row]:
    """Every rule that is bound to a ServiceAccount, as the documentation's table has them."""
    roles = {
        (item["kind"], item["metadata"]["name"]): item["rules"]
        for item in of_kind(manifests, "Role", "ClusterRole")
    }
    return {
        Row(
            account=subject["name"],
            scope="cluster" if binding["kind"] == "ClusterRoleBinding" else "own namespace",
            groups=tuple(group or "core" for group in rule["apiGroups"]),
            resources=tuple(rule["resources"]),
            names=tuple(rule.get("resourceNames", ())),
            verbs=tuple(rule["verbs"]),
        )
        for binding in of_kind(manifests, "RoleBinding", "ClusterRoleBinding")
        for subject in binding["subjects"]
        for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
    }
