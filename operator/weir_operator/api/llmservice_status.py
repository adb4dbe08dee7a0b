"""The status of an LLMService."""

from __future__ import annotations

from pydantic import Field

from weir_operator.api.base import ApiModel, list_map
from weir_operator.api.conditions import Condition


class SloStatus(ApiModel):
    """How one objective is met, over all pods."""

    metric: str = Field(description="As in spec.slo.")
    statistic: str = Field(description="As in spec.slo.")
    threshold_seconds: float = Field(description="What is allowed.")
    measured_seconds: float | None = Field(
        default=None, description="The worst pod's value over the last minute."
    )
    attained: bool | None = Field(
        default=None, description="Whether it holds on every pod; absent: nothing was measured."
    )


class PodStatus(ApiModel):
    """One pod as the control plane sees it."""

    name: str = Field(description="The pod's name.")
    uid: str = Field(description="The pod's UID.")
    state: str = Field(
        description="The agent's own state (starting, serving, draining, engine_down, disk_full), "
        "or unknown while it has never synced."
    )
    policy_fresh: bool | None = Field(
        default=None, description="Whether the agent holds a policy that is still leased."
    )
    total_kv_blocks: int | None = Field(default=None, description="KV blocks of the pod's engine.")
    offline_kv_threshold_blocks: int | None = Field(
        default=None,
        description="KV blocks that batch work may hold now.",
    )
    step_budget_seconds: float | None = Field(
        default=None,
        description="How long a step may take now; absent: the engine decides by its objectives.",
    )
    offline_tokens_per_second: float | None = Field(
        default=None, description="Tokens of batch work served a second, over the last window."
    )


class LLMServiceStatus(ApiModel):
    """What the service is."""

    observed_generation: int = Field(
        default=0, ge=0, description="metadata.generation that this status speaks of."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        json_schema_extra=list_map("type"),
        description="Ready, Configured, Available, Progressing, Registered, SLOMet and "
        "PolicyFresh; docs/crds.md gives each reason.",
    )
    replicas: int = Field(
        default=0, ge=0, description="Pods that exist, for the scale subresource."
    )
    ready_replicas: int = Field(default=0, ge=0, description="Pods that answer requests.")
    updated_replicas: int = Field(default=0, ge=0, description="Pods of the present spec.")
    selector: str | None = Field(
        default=None, description="The pods' label selector, for the scale subresource."
    )
    url: str | None = Field(
        default=None,
        description="The OpenAI endpoint inside the cluster, without the closing /v1.",
    )
    model: str | None = Field(default=None, description="The model's name in requests.")
    slo: list[SloStatus] = Field(
        default_factory=list,
        json_schema_extra=list_map("metric", "statistic"),
        description="How each objective is met.",
    )
    offline_tokens_per_second: float | None = Field(
        default=None, description="Tokens of batch work served a second by all pods."
    )
    pods: list[PodStatus] = Field(
        default_factory=list,
        json_schema_extra=list_map("name"),
        description="Each pod's threshold, budget and throughput; at most 1,000.",
    )
