"""The tables of what Kubernetes adds: namespaces, BatchJobs, LLMServices; and of URIs and links.

As in `models`: times are seconds since 1970, and a change needs a migration.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, false, text
from sqlalchemy.orm import Mapped, mapped_column

from weir_controlplane.store.models import Base


class NamespaceBinding(Base):
    """A tenant may use the models of a namespace.

    With ``batchjobs`` the namespace's BatchJobs are the tenant's too: of one tenant at most.
    """

    __tablename__ = "namespace_bindings"
    __table_args__ = (
        Index(
            "uq_namespace_bindings_batchjobs",
            "namespace",
            unique=True,
            sqlite_where=text("batchjobs"),
            postgresql_where=text("batchjobs"),
        ),
    )

    namespace: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    batchjobs: Mapped[bool]
    created_at: Mapped[float]


class UriPrefix(Base):
    """URIs under which a tenant may read inputs, or write outputs too."""

    __tablename__ = "uri_prefixes"
    __table_args__ = (Index("ix_uri_prefixes_tenant_id", "tenant_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    prefix: Mapped[str]
    # The default in the database is for the previous release: it writes them decoded.
    encoded: Mapped[bool] = mapped_column(default=True, server_default=false())
    writable: Mapped[bool]
    created_at: Mapped[float]


class SigningKey(Base):
    """A key of signed links. The newest signs, all verify; made once, by whoever starts first."""

    __tablename__ = "signing_keys"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    secret: Mapped[bytes]
    created_at: Mapped[float]


class BatchJob(Base):
    """A BatchJob: the first input that was accepted for its uid, and what became of it.

    ``work_*`` is the fenced lease of whoever reads its input or delivers its output.
    """

    __tablename__ = "batchjobs"
    __table_args__ = (
        Index("ix_batchjobs_batch_id", "batch_id", unique=True),
        Index("ix_batchjobs_tenant_id", "tenant_id"),
        Index("ix_batchjobs_input_file_id", "input_file_id"),
    )

    uid: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    namespace: Mapped[str]
    name: Mapped[str]
    service: Mapped[str | None]  # namespace/name; None: any that the tenant may use
    model: Mapped[str | None]
    endpoint: Mapped[str]
    completion_window: Mapped[str]
    priority: Mapped[int]
    suspended: Mapped[bool]
    deadline_at: Mapped[float | None]
    labels: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    fingerprint: Mapped[str]  # of everything that does not change
    created_at: Mapped[float]

    # Until it is a file. Up to 1 MiB: loaded only where it is asked for by name.
    input_inline: Mapped[bytes | None] = mapped_column(deferred=True)
    input_uri: Mapped[str | None]
    input_file_id: Mapped[str | None] = mapped_column(ForeignKey("files.id"))
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id"))
    errors: Mapped[list[Any] | None]  # why there will be no batch
    ended_at: Mapped[float | None]  # failed or cancelled before there was a batch
    output_uri: Mapped[str | None]
    delivery: Mapped[str]  # none | pending | done | failed
    delivery_message: Mapped[str | None]

    work_nonce: Mapped[str | None]
    work_lease_until: Mapped[float] = mapped_column(default=0.0)
    work_failures: Mapped[int] = mapped_column(default=0)
    work_error: Mapped[str | None]
    work_message: Mapped[str | None]  # what stopped the last attempt, for the job's owner


class LlmService(Base):
    """An LLMService as the operator registered it; ``id`` is namespace/name."""

    __tablename__ = "llm_services"

    id: Mapped[str] = mapped_column(primary_key=True)
    namespace: Mapped[str]
    name: Mapped[str]
    model: Mapped[str | None]
    service_account: Mapped[str]
    updated_at: Mapped[float]


class ServicePod(Base):
    """A pod that exists. Its agent is ``namespace.name``."""

    __tablename__ = "service_pods"
    __table_args__ = (Index("ix_service_pods_service", "service"),)

    uid: Mapped[str] = mapped_column(primary_key=True)
    service: Mapped[str] = mapped_column(ForeignKey("llm_services.id"))
    name: Mapped[str]
    registered_at: Mapped[float]
