"""The CustomResourceDefinitions: schemas, printer columns and subresources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from weir_operator.api.batchjob import BatchJob
from weir_operator.api.llmservice import LLMService
from weir_operator.api.schema import structural, without_defaults

GROUP = "weir.dev"
VERSION = "v1alpha1"

_API_VERSION = "The group and version of this object's schema: weir.dev/v1alpha1."
_KIND = "What this object is: {}."


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of ``kubectl get``. ``wide``: only with ``-o wide``."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str

    def manifest(self) -> dict[str, Any]:
        """As it stands in the CRD."""
        return {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
            **({"priority": 1} if self.wide else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One kind: its names, model, columns and, if it scales, the paths of the scale subresource."""

    kind: str
    plural: str
    short: str
    model: type[BaseModel]
    columns: tuple[Column, ...]
    scale: Mapping[str, str] | None = None


def _condition(kind: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_AGE = Column(
    name="Age", type="date", path=".metadata.creationTimestamp", description="Time since creation."
)

LLM_SERVICE = Definition(
    kind="LLMService",
    plural="llmservices",
    short="llmsvc",
    model=LLMService,
    columns=(
        Column(name="Model", path=".status.model", description="The model's name in requests."),
        Column(name="Ready", path=_condition("Ready"), description="Whether it serves."),
        Column(name="Reason", path=_condition("Ready", "reason"), description="Why."),
        Column(
            name="Replicas", type="integer", path=".spec.replicas", description="Pods asked for."
        ),
        Column(
            name="Serving",
            type="integer",
            path=".status.readyReplicas",
            description="Pods that answer requests.",
        ),
        Column(name="SLO", path=_condition("SLOMet"), description="Whether every objective holds."),
        Column(
            name="Offline-Tokens/s",
            type="number",
            path=".status.offlineTokensPerSecond",
            description="Tokens of batch work served a second.",
        ),
        Column(name="URL", path=".status.url", wide=True, description="The endpoint."),
        _AGE,
    ),
    scale={
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    },
)

BATCH_JOB = Definition(
    kind="BatchJob",
    plural="batchjobs",
    short="bj",
    model=BatchJob,
    columns=(
        Column(name="Service", path=".spec.serviceRef.name", description="Who computes it."),
        Column(name="State", path=".status.state", description="Where the batch stands."),
        Column(
            name="Progress",
            type="integer",
            path=".status.progressPercent",
            description="Share of lines that have ended, in percent.",
        ),
        Column(
            name="Failed-Lines",
            type="integer",
            path=".status.counts.failed",
            description="Lines that ended with an error.",
        ),
        # No date: of a time to come kubectl would say <invalid>.
        Column(name="ETA", path=".status.eta", wide=True, description="End, forecast."),
        Column(
            name="At-Risk", path=_condition("AtRisk"), description="Whether it may end too late."
        ),
        Column(name="Batch", path=".status.batchID", wide=True, description="The batch's id."),
        Column(
            name="Reason",
            path=_condition("Accepted", "reason"),
            wide=True,
            description="Why it is accepted, or not yet.",
        ),
        _AGE,
    ),
)

DEFINITIONS = (LLM_SERVICE, BATCH_JOB)


def manifest(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition of ``definition``."""
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [column.manifest() for column in definition.columns],
        "schema": {"openAPIV3Schema": _root(definition)},
        "subresources": {
            "status": {},
            **({"scale": dict(definition.scale)} if definition.scale else {}),
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{definition.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "weir"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": [definition.short],
                "categories": ["weir"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _root(definition: Definition) -> dict[str, Any]:
    schema = structural(definition.model)
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    return schema | {
        "properties": {
            "apiVersion": {"type": "string", "description": _API_VERSION},
            "kind": {"type": "string", "description": _KIND.format(definition.kind)},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": without_defaults(status),
        }
    }
