"""What planning reads: snapshots of one object and of all that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from weir_operator.planning.types import Manifest

FOREIGN_ANSWER = "foreign_answer"
"""The code of an error that is not in the control plane's words: a proxy before it spoke."""
SERVER_ERROR = 500
"""The least HTTP status that says nothing of what was asked."""


@dataclass(frozen=True, kw_only=True)
class OperatorDefaults:
    """Settings of the operator that end up in children.

    ``control_plane_url`` is how pods reach the control plane; ``control_plane_namespace`` and
    ``control_plane_labels`` select its pods in network policies. By ``pod_monitor_labels``
    Prometheus selects PodMonitors. Pods reach name resolution on ``dns_ports``, and pull images
    with the Secrets ``image_pull_secrets`` of their own namespace.
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
    image_pull_secrets: tuple[str, ...] = ()
    audience: str = "weir"
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    dns_ports: tuple[int, ...] = (53,)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An answer that something asked for cannot be.

    ``status_code`` is the HTTP status, 0 without an answer; ``code`` the answer's own code;
    ``message`` names the field and the remedy. ``wish``: the child as it was asked for; None of
    what is no child, or is one that cannot be deleted, which is ``kept_uid``.
    """

    status_code: int
    code: str
    message: str
    wish: Manifest | None = None
    kept_uid: str | None = None

    @property
    def unanswered(self) -> bool:
        """Whether nobody said no but, at most, a proxy: no answer, a server's error, a proxy's."""
        silent = self.status_code == 0 or self.status_code >= SERVER_ERROR
        return silent or self.code == FOREIGN_ANSWER


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
    """What the control plane knows of one registered pod; None where its agent has not said."""

    uid: str
    name: str
    state: str | None = None
    policy_expires_at: datetime | None = None
    total_kv_blocks: int | None = None
    offline_kv_threshold_blocks: int | None = None
    step_budget_s: float | None = None
    offline_tokens_per_s: float | None = None
    slo: tuple[SloReport, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServiceReport:
    """The control plane's answer about one LLMService: what is registered, and how it does."""

    model: str | None
    service_account: str
    pods: tuple[PodReport, ...] = ()
    slo_attainment: float | None = None
    policy_fresh: bool | None = None
    offline_tokens_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DeliveryReport:
    """What became of the copy of the results to ``output.uri``.

    ``state``: none, pending, done or failed.
    """

    state: str = "none"
    output_uri: str | None = None
    error_uri: str | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """The control plane's answer about one BatchJob; docs/protocol.md explains each field.

    ``batch_id`` None: no batch exists, by ``suspended`` or while its input is read.
    """

    uid: str
    batch_id: str | None
    status: str
    suspended: bool = False
    input_matches: bool = True
    total_lines: int = 0
    completed_lines: int = 0
    failed_lines: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    eta_at: datetime | None = None
    predicted_miss: bool = False
    waiting_reason: str | None = None
    waiting_message: str | None = None
    errors: tuple[str, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_link: str | None = None
    error_link: str | None = None
    delivery: DeliveryReport = DeliveryReport()


@dataclass(frozen=True, kw_only=True)
class ObservedLLMService:
    """One LLMService and its surroundings.

    Attributes:
        service: the LLMService as the API server shows it.
        children: live objects that carry the label ``weir.dev/llmservice`` with its name, by
            (kind, name).
        pods: live pods with the same label.
        control_plane_reached: whether the control plane answered the last time it was asked.
        control_plane_complaint: what it said in the place of an answer; None: nothing.
        report: what the control plane says; None when it knows nothing of the service, or was not
            reached.
        slo_silence_s: how long ago an objective was measured; None: not since the operator began.
        refusals: children that the API server refused, or refused to delete, by (kind, name), and
            the control plane's refusal of `RegisterPods` under ("RegisterPods", name).
        optional_kinds: kinds out of ``PodMonitor`` and ``ScaledObject`` that the cluster has.
        now: an aware datetime.
    """

    service: Manifest
    children: Mapping[tuple[str, str], Manifest]
    pods: tuple[Manifest, ...]
    control_plane_reached: bool
    report: ServiceReport | None
    slo_silence_s: float | None = None
    control_plane_complaint: str | None = None
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
        config_map: the ConfigMap that the input names; None when there is none, none named, or
            the control plane has its lines.
        control_plane_reached: whether the control plane answered the last time it was asked.
        control_plane_complaint: what it said in the place of an answer; None: nothing.
        report: what the control plane says. None with ``control_plane_reached`` True is its
            answer that it knows no such uid: asked after ``status.batchID`` was written, never a
            list that may be older.
        refusal: the control plane's refusal of the last `PutBatchJob`; None once one was accepted.
        forbidden: what the API server says of what the operator may not do for the batch: read its
            ConfigMap, or set the finalizer; None: nothing.
        finalizer_deadline_s: how long a deletion waits for the control plane.
        now: an aware datetime.
    """

    job: Manifest
    service: Manifest | None
    config_map: Manifest | None
    control_plane_reached: bool
    report: BatchReport | None
    control_plane_complaint: str | None = None
    refusal: Refusal | None = None
    forbidden: str | None = None
    finalizer_deadline_s: float = 120.0
    now: datetime
