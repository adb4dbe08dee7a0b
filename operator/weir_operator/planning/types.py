"""What planning returns: a `Plan` and the values in it.

Manifests are JSON objects as the API server shows them; nothing here may be changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Manifest = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ObjectKey:
    """What work is queued by. ``kind``: ``LLMService`` or ``BatchJob``."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, kw_only=True)
class ChildRef:
    """An object to delete. ``uid`` is the deletion's precondition: a namesake made since stays."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class EventNote:
    """A Kubernetes Event about the planned object. ``reason`` is UpperCamelCase and stable."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class InlineInput:
    """Input lines (JSONL) that travel in the request."""

    text: str


@dataclass(frozen=True, kw_only=True)
class UriInput:
    """Input lines that the control plane fetches."""

    uri: str


@dataclass(frozen=True, kw_only=True)
class PutBatchJob:
    """``PUT /internal/v1/batchjobs/{uid}``: the batch of a BatchJob; the first input wins.

    Safe to repeat; repeated with another ``suspended``, ``priority`` or ``deadline`` it changes
    those. With ``batch_id`` (while there is no batch, the uid) an unknown uid is 404, never a new
    batch. ``service`` is the name of an LLMService in ``namespace``.
    """

    uid: str
    namespace: str
    name: str
    service: str
    model: str
    endpoint: str
    completion_window: str
    priority: int
    suspended: bool
    deadline: datetime | None
    input: InlineInput | UriInput
    output_uri: str | None
    metadata: Mapping[str, str]
    batch_id: str | None


@dataclass(frozen=True, kw_only=True)
class CancelBatch:
    """``POST /internal/v1/batchjobs/{uid}/cancel``; an unknown uid counts as done."""

    uid: str


@dataclass(frozen=True, kw_only=True)
class ForgetBatch:
    """``DELETE /internal/v1/batchjobs/{uid}`` of one that has ended; its results stay."""

    uid: str


@dataclass(frozen=True, kw_only=True)
class PodIdentity:
    """A pod that may speak for a service."""

    uid: str
    name: str


@dataclass(frozen=True, kw_only=True)
class RegisterPods:
    """``PUT /internal/v1/services/{namespace}/{name}``: the pods that may sync for a service.

    Complete, terminating pods included: a pod that is absent loses its leases at once.
    """

    namespace: str
    name: str
    model: str
    service_account: str
    pods: tuple[PodIdentity, ...]


@dataclass(frozen=True, kw_only=True)
class ReleaseService:
    """``DELETE /internal/v1/services/{namespace}/{name}``: gone with all its pods."""

    namespace: str
    name: str


ControlPlaneRequest = PutBatchJob | CancelBatch | ForgetBatch | RegisterPods | ReleaseService


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that one reconcile of one object asks for.

    The executor carries it out in the order of the fields, and may stop at the first failure: the
    next reconcile plans again. Planning again from the result of a plan gives an equal plan with
    ``status`` None, no events and ``finalizer`` None.

    Attributes:
        finalizer: True: the object must get `FINALIZER` before anything else; False: it must lose
            it, as the last act; None: leave it.
        requests: calls to the control plane; their answers come back in the next observation.
        children: the complete desired manifests, to be applied under the field manager where the
            live object differs in a field that they name.
        removals: objects to delete, the planned object itself included (``ttl``).
        status: the complete desired ``status``, None when the live one is already equal.
        events: to be sent once ``status`` has been written, so that each is said once.
        requeue_after_s: plan again after this long even when nothing is observed to change.
    """

    children: tuple[Manifest, ...] = ()
    removals: tuple[ChildRef, ...] = ()
    status: Manifest | None = None
    events: tuple[EventNote, ...] = ()
    requests: tuple[ControlPlaneRequest, ...] = ()
    finalizer: bool | None = None
    requeue_after_s: float | None = None
