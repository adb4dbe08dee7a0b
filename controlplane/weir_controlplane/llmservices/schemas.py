"""LLMServices between the operator and the control plane, as docs/protocol.md gives them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from weir_controlplane.agents.schemas import Name, SloState
from weir_controlplane.batchjobs.schemas import DnsName, Uid

MAX_PODS = 2000


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RegisteredPod(_Body):
    """A pod of the service that exists, terminating ones included."""

    uid: Uid
    name: DnsName


class PutService(_Body):
    """PUT /internal/v1/services/{namespace}/{name}. Pods not in the list are gone."""

    model: Name | None = None
    service_account: DnsName
    pods: list[RegisteredPod] = Field(default_factory=list, max_length=MAX_PODS)


class PodStatus(_Body):
    """One pod. Null where its agent has not said so lately; times are seconds since 1970."""

    uid: str
    name: str
    agent_id: str
    state: str | None
    last_sync_at: float | None
    held_chunks: int
    offline_kv_threshold_blocks: int | None
    offline_seq_slots: int | None
    step_budget_s: float | None
    policy_expires_at: float | None
    total_blocks: int | None
    online_kv_blocks: int | None
    offline_kv_blocks: int | None
    offline_tokens_per_s: float | None
    slo: list[SloState]
    slo_met: bool | None


class ServiceStatus(_Body):
    """A service and its pods.

    ``slo_attainment``: share of the pods' objectives that hold now. ``policy_fresh``: every pod
    that serves has a policy whose lease lasts.
    """

    object: Literal["llmservice"] = "llmservice"
    namespace: str
    name: str
    model: str | None
    service_account: str
    pods: list[PodStatus]
    slo_attainment: float | None
    offline_tokens_per_s: float
    policy_fresh: bool | None
    waiting_batches: int


class ServiceList(_Body):
    """GET /internal/v1/services, by namespace and name."""

    object: Literal["list"] = "list"
    data: list[ServiceStatus]
