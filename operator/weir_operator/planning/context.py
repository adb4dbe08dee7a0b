"""What every part of an LLMService's plan reads: the parsed spec and the names derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weir_operator.api.llmservice import LLMServiceSpec
from weir_operator.planning.kinds import API_VERSION, LLM_SERVICE, MADE_BY, SERVICE_LABEL, Kind
from weir_operator.planning.observed import ObservedLLMService, OperatorDefaults
from weir_operator.planning.types import Manifest

AGENT_PORT = 8000
COMPONENT = "agent"


@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """One LLMService, parsed. Children all have its name."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: LLMServiceSpec
    defaults: OperatorDefaults

    @property
    def served_name(self) -> str:
        """The model's name in requests."""
        return self.spec.model.served_name or self.name

    @property
    def selector(self) -> dict[str, str]:
        """The labels that pods are selected by; they never change."""
        return {SERVICE_LABEL: self.name, "app.kubernetes.io/component": COMPONENT}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every child and pod."""
        return {
            **self.selector,
            "app.kubernetes.io/name": "weir-agent",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/part-of": "weir",
            **MADE_BY,
        }

    @property
    def url(self) -> str:
        """The endpoint inside the cluster."""
        return f"http://{self.name}.{self.namespace}.svc:{AGENT_PORT}"

    def child(self, kind: Kind, **content: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """A child's manifest: owned by the LLMService, so that it goes with it."""
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": self.labels,
                "ownerReferences": [
                    {
                        "apiVersion": API_VERSION,
                        "kind": LLM_SERVICE.kind,
                        "name": self.name,
                        "uid": self.uid,
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            **content,
        }


def context_of(observed: ObservedLLMService) -> ServiceContext:
    """The context of an observed LLMService.

    Raises:
        pydantic.ValidationError: the stored spec is not one of this version's, because another
            version of the CRD let it in.
    """
    metadata: Manifest = observed.service["metadata"]
    return ServiceContext(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        spec=LLMServiceSpec.model_validate(observed.service["spec"]),
        defaults=observed.defaults,
    )
