"""The parts of an LLMService's spec that say how its replicas are run as pods of a cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from weir_operator.api.base import (
    AnyObject,
    ApiModel,
    IntOrPercent,
    int_or_percent,
    rule,
    with_rules,
)


class Rollout(ApiModel):
    """How replicas start, are replaced and end."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            int_or_percent("rollout", "maxSurge"),
            int_or_percent("rollout", "maxUnavailable"),
            rule(
                "!(string(self.maxSurge) in ['0', '0%'] && "
                "string(self.maxUnavailable) in ['0', '0%'])",
                "rollout.maxSurge and rollout.maxUnavailable cannot both be 0: no replica could "
                "ever be replaced; without a spare GPU set maxSurge 0 and maxUnavailable 1",
            ),
        )
    )

    max_surge: IntOrPercent = Field(
        default=1,
        description="Replicas above spec.replicas during an update. With 1 an update waits for a "
        "free GPU for ever where there is none: set 0, and maxUnavailable 1, there.",
    )
    max_unavailable: IntOrPercent = Field(
        default=0,
        description="Replicas that may be missing during an update.",
    )
    drain_seconds: int = Field(
        default=120,
        ge=0,
        le=86_400,
        description="The longest online request: how long a replica that is replaced goes on "
        "answering what it has begun.",
    )
    startup_seconds: int = Field(
        default=1_800,
        ge=10,
        le=86_400,
        description="How long a replica may take to load its model, before it is started again.",
    )


class Autoscaling(ApiModel):
    """An autoscaler that sets spec.replicas."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "self.minReplicas <= self.maxReplicas",
                "autoscaling.minReplicas must not be above maxReplicas",
            ),
            rule(
                "self.type != 'HPA' || self.minReplicas >= 1",
                "autoscaling.minReplicas must be at least 1 with type HPA: only KEDA scales to 0",
            ),
            rule(
                "self.type != 'HPA' || (has(self.metrics) && size(self.metrics) > 0)",
                "autoscaling.metrics is needed with type HPA: give what to scale by",
            ),
            rule(
                "self.type != 'KEDA' || (has(self.triggers) && size(self.triggers) > 0)",
                "autoscaling.triggers is needed with type KEDA: give what to scale by",
            ),
            rule(
                "self.type != 'HPA' || !has(self.triggers)",
                "autoscaling.triggers is KEDA's: with type HPA give metrics instead",
            ),
            rule(
                "self.type != 'KEDA' || !has(self.metrics)",
                "autoscaling.metrics is the HPA's: with type KEDA give triggers instead",
            ),
        )
    )

    type: Literal["HPA", "KEDA"] = Field(
        description="HPA: a HorizontalPodAutoscaler. KEDA: a ScaledObject; needs KEDA."
    )
    min_replicas: int = Field(default=1, ge=0, le=1_000, description="Fewest replicas.")
    max_replicas: int = Field(ge=1, le=1_000, description="Most replicas.")
    metrics: list[AnyObject] | None = Field(
        default=None,
        max_length=32,
        description="What the HPA scales by: metrics of autoscaling/v2.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    triggers: list[AnyObject] | None = Field(
        default=None,
        max_length=32,
        description="What KEDA scales by: triggers of a ScaledObject.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    behavior: AnyObject | None = Field(
        default=None,
        description="How fast the HPA may scale: behavior of autoscaling/v2. With KEDA it is put "
        "into the ScaledObject's HPA.",
    )


class PodDisruptionBudget(ApiModel):
    """How many replicas a node drain may take at once."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(int_or_percent("podDisruptionBudget", "maxUnavailable"))
    )

    max_unavailable: IntOrPercent = Field(
        default=1,
        description="Replicas that voluntary disruptions may take at once, as a number or a "
        "percentage. 0 blocks node drains.",
    )


class NetworkAccess(ApiModel):
    """Who may reach the replicas, and whom they may reach."""

    enabled: bool = Field(
        default=True,
        description="Whether a NetworkPolicy is made. It allows the port of the endpoint inwards, "
        "and DNS, the control plane and, for hf:// models, HTTPS outwards.",
    )
    allow_from: list[AnyObject] | None = Field(
        default=None,
        max_length=64,
        description="Peers that may reach the endpoint, as in a NetworkPolicy's `from`. Default: "
        "everybody in the cluster. Prometheus reads /metrics there: name it too, or its alerts "
        "take the pods for dead.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    allow_to: list[AnyObject] = Field(
        default_factory=list,
        max_length=64,
        description="Further egress rules, as in a NetworkPolicy's `egress`.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class Monitoring(ApiModel):
    """How Prometheus finds the replicas."""

    pod_monitor: bool = Field(
        default=True,
        description="Whether a PodMonitor is made where the cluster has that kind.",
    )
    interval: str = Field(
        default="15s",
        max_length=8,
        description="How often Prometheus asks each replica.",
        json_schema_extra=with_rules(
            rule(
                "self.matches('^[1-9][0-9]{0,3}[smh]$')",
                "monitoring.interval must be a number with s, m or h, such as 15s",
            )
        ),
    )


class PodTemplateMetadata(ApiModel):
    """Labels and annotations that are added to the pods."""

    labels: dict[str, Annotated[str, Field(max_length=63)]] | None = Field(
        default=None,
        description="Labels to add. Those that Weir selects pods by keep Weir's values.",
        json_schema_extra={"maxProperties": 64},
    )
    annotations: dict[str, Annotated[str, Field(max_length=16_384)]] | None = Field(
        default=None, description="Annotations to add.", json_schema_extra={"maxProperties": 64}
    )


class PodTemplate(ApiModel):
    """Overrides that are merged into the pods last."""

    metadata: PodTemplateMetadata | None = Field(
        default=None, description="Labels and annotations that are added to the pods."
    )
    spec: AnyObject | None = Field(
        default=None,
        description="A part of a pod's spec. Maps are merged; containers, volumes, env and other "
        "lists with a key are merged by it; other lists and values replace Weir's. The engine's "
        "container is named agent. What the API server refuses shows in condition Configured.",
    )
