"""Settings of the operator: parsed once, at start, from ``WEIR_OPERATOR_<NAME>``.

The only place that reads the environment. Each field has its unit in its name and a description;
None always means the default that the description gives.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    Field,
    HttpUrl,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from weir_operator.api.base import RFC1123_LABEL
from weir_operator.planning.observed import OperatorDefaults

DAY_S = 86_400
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


_WEB_ADDRESS = TypeAdapter(HttpUrl)
_WORD = "[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
ObjectName = Annotated[str, Field(pattern="^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
NamespaceName = Annotated[str, Field(pattern=RFC1123_LABEL, max_length=63)]
Port = Annotated[int, Field(ge=1, le=65535)]
LabelName = Annotated[str, Field(pattern=f"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{_WORD}$")]
LabelValue = Annotated[str, Field(pattern=f"^({_WORD})?$", max_length=63)]


class OperatorSettings(BaseSettings):
    """Everything that can be set on an operator, as ``WEIR_OPERATOR_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="WEIR_OPERATOR_", frozen=True, extra="ignore")

    host: str = Field(
        default="127.0.0.1", description="Address on which probes and metrics are served."
    )
    port: int = Field(
        default=8081, ge=0, le=65535, description="TCP port of probes and metrics; 0: a free one."
    )
    log_level: str = Field(
        default="info",
        pattern="^(debug|info|warning|error)$",
        description="Lowest level that is logged.",
    )
    pod_name: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=253,
        description="Name of this replica, in the lease and in the User-Agent; default: the host "
        "name, which in a pod is the pod's.",
    )
    namespaces: Annotated[tuple[NamespaceName, ...], NoDecode] = Field(
        default=(),
        description="Namespaces, separated by commas, whose objects are acted on; default: all.",
    )
    kubeconfig: Path | None = Field(
        default=None,
        description="File that says how to reach the API server; default: the pod's own "
        "ServiceAccount, or outside a pod what kubectl uses.",
    )
    control_plane_url: str = Field(
        pattern="^https?://[^/]",
        description="Base URL of the control plane, for the operator and for the pods of services.",
    )
    control_plane_token_file: Path | None = Field(
        default=None,
        description="File with the token for the control plane (a projected ServiceAccount token, "
        "or an admin key), read again when it changes; default: no token is sent.",
    )
    control_plane_namespace: str | None = Field(
        default=None,
        description="Namespace of the control plane's pods, for network policies; default: the "
        "operator's own.",
    )
    dns_ports: Annotated[tuple[Port, ...], NoDecode] = Field(
        default=(53,),
        min_length=1,
        description="Ports of the cluster's name resolution, separated by commas, which network "
        "policies let the pods of services reach.",
    )
    control_plane_timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="How long one call to the control plane may take."
    )
    progress_interval_s: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="Seconds between looks at the progress of all batches and services.",
    )
    vllm_image: str = Field(
        default="weir-agent:0.1.0",
        description="Image of services with backend vllm that name none.",
    )
    torch_image: str = Field(
        default="weir-agent:0.1.0",
        description="Image of services with backend torch that name none.",
    )
    image_pull_policy: str = Field(
        default="IfNotPresent",
        pattern="^(Always|IfNotPresent|Never)$",
        description="When images are pulled: Always, IfNotPresent or Never.",
    )
    image_pull_secrets: Annotated[tuple[ObjectName, ...], NoDecode] = Field(
        default=(),
        description="Secrets, separated by commas, with which the pods of services pull their "
        "images; each namespace with services has its own of that name.",
    )
    audience: str = Field(
        default="weir", min_length=1, description="Audience of the tokens that pods get."
    )
    pod_monitor_labels: Annotated[dict[LabelName, LabelValue], NoDecode] = Field(
        default_factory=dict,
        description="Labels of the PodMonitors of services, by which Prometheus selects them, as "
        'JSON: {"release": "prometheus"}.',
    )

    lease_name: str = Field(default="weir-operator", description="Name of the leader's Lease.")
    lease_namespace: str | None = Field(
        default=None, description="Namespace of the Lease; default: the operator's own."
    )
    lease_s: float = Field(
        default=10.0,
        ge=1,
        le=3600,
        description="Silence of the leader after which another takes over.",
    )
    renew_deadline_s: float = Field(
        default=6.0,
        gt=0,
        le=3600,
        description="Silence after which the leader stops writing and ends.",
    )
    retry_s: float = Field(
        default=2.0, gt=0, le=3600, description="Seconds between tries at the Lease."
    )
    lease_request_timeout_s: float = Field(
        default=2.0, gt=0, le=3600, description="How long one request for the Lease may take."
    )

    request_timeout_s: float = Field(
        default=10.0, gt=0, le=60, description="How long one read of the API server may take."
    )
    write_timeout_s: float = Field(
        default=3.0,
        gt=0,
        le=3600,
        description="How long one write may take; with renew_deadline_s less than lease_s, so that "
        "no write of a former leader meets its successor's.",
    )
    resync_s: float = Field(
        default=600.0,
        ge=1,
        le=DAY_S,
        description="Seconds between full lists of every watched kind.",
    )
    workers: int = Field(default=8, ge=1, le=64, description="Objects reconciled at once.")
    reconciles_per_s: float = Field(
        default=100.0,
        gt=0,
        le=1e6,
        description="Most reconciles started in a second, over all objects.",
    )
    backoff_first_s: float = Field(
        default=0.25,
        gt=0,
        le=3600,
        description="Longest pause after an object's first failure; doubles.",
    )
    backoff_most_s: float = Field(
        default=60.0, gt=0, le=DAY_S, description="Longest pause after many failures of one object."
    )
    reconcile_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=DAY_S,
        description="How long one reconcile may take before it counts as failed.",
    )
    status_writes_per_s: float = Field(
        default=20.0, gt=0, le=1e6, description="Most status writes in a second, over all objects."
    )
    status_interval_s: float = Field(
        default=5.0,
        ge=0,
        le=DAY_S,
        description="Least seconds between two status writes of one object.",
    )
    finalizer_deadline_s: float = Field(
        default=120.0,
        ge=0,
        le=DAY_S,
        description="How long the deletion of a BatchJob waits for a control plane that does not "
        "answer.",
    )

    @field_validator("control_plane_url")
    @classmethod
    def _web_address(cls, value: str) -> str:
        try:
            _WEB_ADDRESS.validate_python(value)
        except ValidationError:
            raise ValueError("must be an http or https URL with a host") from None
        return value

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(sorted({part.strip() for part in value.split(",") if part.strip()}))
        return value

    @field_validator("dns_ports", "image_pull_secrets", mode="before")
    @classmethod
    def _split_in_order(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        return value

    @field_validator("pod_monitor_labels", mode="before")
    @classmethod
    def _decode(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value or "{}")
        except ValueError as error:
            raise ValueError(
                f'must be JSON, such as {{"release": "prometheus"}}: {error}'
            ) from None

    @model_validator(mode="after")
    def _one_writer(self) -> Self:
        if self.renew_deadline_s + self.write_timeout_s >= self.lease_s:
            raise ValueError(
                f"renew_deadline_s + write_timeout_s ({self.renew_deadline_s:g} + "
                f"{self.write_timeout_s:g}) must be less than lease_s ({self.lease_s:g})"
            )
        if self.retry_s + self.lease_request_timeout_s > self.renew_deadline_s:
            raise ValueError(
                "retry_s + lease_request_timeout_s must be at most renew_deadline_s, or one lost "
                "request ends the leader"
            )
        return self

    @property
    def user_agent(self) -> str:
        """What the API server's audit log shows of this replica."""
        return f"weir-operator/{self.pod_name}"

    def own_namespace(self) -> str:
        """The namespace that this pod runs in; ``default`` outside a pod."""
        try:
            return NAMESPACE_FILE.read_text().strip() or "default"
        except OSError:
            return "default"

    def identity(self) -> str:
        """A holder of the Lease: this process, not its restarted successor."""
        return f"{self.pod_name}_{os.getpid()}_{os.urandom(4).hex()}"

    def defaults(self) -> OperatorDefaults:
        """The settings that end up in children."""
        return OperatorDefaults(
            control_plane_url=self.control_plane_url,
            control_plane_namespace=self.control_plane_namespace or self.own_namespace(),
            vllm_image=self.vllm_image,
            torch_image=self.torch_image,
            image_pull_policy=self.image_pull_policy,
            image_pull_secrets=self.image_pull_secrets,
            audience=self.audience,
            pod_monitor_labels=self.pod_monitor_labels,
            dns_ports=self.dns_ports,
        )
