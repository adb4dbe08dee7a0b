"""`LLMService`: pods that serve one model online, and lend their surplus to batches."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from weir_operator.api.base import ApiModel, list_map, rule, with_rules
from weir_operator.api.llmservice_operation import (
    Autoscaling,
    Monitoring,
    NetworkAccess,
    PodDisruptionBudget,
    PodTemplate,
    Rollout,
)
from weir_operator.api.llmservice_parts import Colocation, Engine, Model, Resources, Slo
from weir_operator.api.llmservice_status import LLMServiceStatus

_GPU = "'nvidia.com/gpu'"
GPUS_EQUAL_PARALLELISM = (
    f"!has(self.resources.limits) || !({_GPU} in self.resources.limits) || "
    f"string(self.resources.limits[{_GPU}]) == string(self.engine.tensorParallelSize)"
)


class LLMServiceSpec(ApiModel):
    """What the service should be."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                GPUS_EQUAL_PARALLELISM,
                "resources.limits['nvidia.com/gpu'] must be equal to engine.tensorParallelSize: "
                "each replica computes on as many GPUs as its model is split over",
            ),
            rule(
                "!self.colocation.cpuAttention || self.engine.backend == 'torch'",
                "colocation.cpuAttention needs engine.backend torch: vLLM has no attention on the "
                "CPU beside the GPU",
            ),
            rule(
                "self.colocation.enabled || !has(self.colocation.maxOfflineKVFraction) || "
                "self.colocation.maxOfflineKVFraction == 0.0",
                "colocation.maxOfflineKVFraction has no meaning with colocation.enabled false: "
                "remove it, or enable co-location",
            ),
        )
    )

    model: Model = Field(description="The model that every replica serves.")
    engine: Engine = Field(
        default_factory=Engine, description="The inference engine and how it is started."
    )
    replicas: int = Field(
        default=1,
        ge=0,
        le=1_000,
        description="How many pods serve the model. The scale subresource reads and writes it; "
        "leave it out of manifests where an autoscaler sets it.",
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="CPU, memory and devices of the engine's container in each replica.",
    )
    slo: list[Slo] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=list_map("metric", "statistic"),
        description="Latency objectives of online requests, each to be held at all times. Without "
        "any, online requests may have means of TBT and TTFT a tenth above what they would have "
        "alone, as the engine estimates it.",
    )
    colocation: Colocation = Field(
        default_factory=Colocation, description="How batch work shares the replicas."
    )
    rollout: Rollout = Field(
        default_factory=Rollout, description="How replicas start, are replaced and end."
    )
    autoscaling: Autoscaling | None = Field(
        default=None,
        description="An autoscaler that sets spec.replicas through the scale subresource. "
        "Absent: none is made.",
    )
    pod_disruption_budget: PodDisruptionBudget = Field(
        default_factory=PodDisruptionBudget,
        description="How many replicas a node drain may take at once.",
    )
    network_policy: NetworkAccess = Field(
        default_factory=NetworkAccess, description="Who may reach the replicas, and whom they may."
    )
    monitoring: Monitoring = Field(
        default_factory=Monitoring, description="How Prometheus finds the replicas."
    )
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Overrides that are merged into the pods last: anything that a pod can have.",
    )


class LLMService(ApiModel):
    """Serves one model online and lends the surplus of its GPUs to batches."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
                "metadata.name must be at most 63 lower-case letters, digits and '-', and start "
                "with a letter: a Service of this name is made",
            )
        )
    )

    spec: LLMServiceSpec = Field(description="What the service should be.")
    status: LLMServiceStatus | None = Field(
        default=None, description="What the service is; written by the operator."
    )
