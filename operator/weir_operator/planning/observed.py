"""What planning reads: snapshots of one object and of all that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from weir_operator.planning.types import Manifest


@dataclass(frozen=True, kw_only=True)
class OperatorDefaults:
    """Settings of the operator that end up in children.

    ``control_plane_url`` is how pods reach the control plane; ``control_plane_namespace`` and
    ``control_plane_labels`` select its pods in network policies.
    """

    control_plane_url: str
    control_plane_namespace: str
    control_plane_labels: Mapping[str, str] = field(
        default_factory=lambda: {
            "app.kubernetes.io/name": "weir",
            "app.kubernetes.io/component": "controlplane",
        }
    )
    control_plane_port: int = 8080
    vllm_image: str
    torch_image: str
    image_pull_policy: str = "IfNotPresent"
    audience: str = "weir"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A permanent answer that something asked for cannot be: not retried until the spec changes.

    ``generation`` is the object's at the time of asking. ``code`` is the answer's own code;
    ``message`` names the field and the remedy.
    """

    generation: int
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class SloReport:
    """How one objective is met on a pod. ``attained`` None: nothing measured."""

    metric: str
    statistic: str
    threshold_s: float
    measured_s: float | None
    attained: bool | None


@dataclass(frozen=True, kw_only=True)
class PodReport:
    """What the control plane knows of one pod's agent.

    ``policy_source``: ``controlplane`` while the policy's lease holds; None: no agent has synced.
    """

    uid: str
    name: str
    state: str | None = None
    last_sync_at: datetime | None = None
    policy_fresh: bool | None = None
    total_kv_blocks: int | None = None
    offline_kv_threshold_blocks: int | None = None
    step_budget_s: float | None = None
    offline_tokens_per_s: float | None = None
    slo: tuple[SloReport, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServiceReport:
    """The control plane's answer about one LLMService. ``slo`` is over all its pods."""

    pods: tuple[PodReport, ...] = ()
    slo: tuple[SloReport, ...] = ()
    offline_tokens_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """The control plane's answer about one BatchJob; ``status`` is the batch's own.

    ``batch_id`` None: accepted, but suspended from birth, so nothing exists that could run.
    """

    uid: str
    batch_id: str | None
    status: str | None
    suspended: bool = False
    total_lines: int = 0
    completed_lines: int = 0
    failed_lines: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    eta_at: datetime | None = None
    predicted_miss: bool = False
    reason: str | None = None
    errors: tuple[str, ...] = ()
    output_uri: str | None = None
    error_uri: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class ObservedLLMService:
    """One LLMService and its surroundings.

    Attributes:
        service: the LLMService as the API server shows it.
        children: live objects that carry the label ``weir.dev/llmservice`` with its name, by
            (kind, name).
        pods: live pods with the same label.
        report: what the control plane says; None when it knows nothing of the service or
            ``control_plane_reached`` is False.
        refusals: children that the API server refused for good, by (kind, name), and the control
            plane's refusal of `RegisterPods` under ("RegisterPods", name).
        optional_kinds: kinds out of ``PodMonitor`` and ``ScaledObject`` that the cluster has.
        now: an aware datetime.
    """

    service: Manifest
    children: Mapping[tuple[str, str], Manifest]
    pods: tuple[Manifest, ...]
    control_plane_reached: bool
    report: ServiceReport | None
    refusals: Mapping[tuple[str, str], Refusal] = field(default_factory=dict)
    optional_kinds: frozenset[str]
    defaults: OperatorDefaults
    now: datetime


@dataclass(frozen=True, kw_only=True)
class ObservedBatchJob:
    """One BatchJob and its surroundings.

    Attributes:
        job: the BatchJob as the API server shows it.
        service: the LLMService that ``serviceRef`` names; None when there is none.
        config_map: the ConfigMap that the input names; None when there is none, or none named.
        report: what the control plane says; None with ``control_plane_reached`` True means that it
            answered 404.
        refusal: the control plane's permanent refusal of the last `PutBatchJob`.
        now: an aware datetime.
    """

    job: Manifest
    service: Manifest | None
    config_map: Manifest | None
    control_plane_reached: bool
    report: BatchReport | None
    refusal: Refusal | None = None
    now: datetime
