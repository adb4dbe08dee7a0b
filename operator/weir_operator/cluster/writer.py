"""Writes to the cluster, each only when something of ours differs. Decides nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.errors import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    NamespaceTerminatingError,
    NotFoundError,
    RefusedError,
)
from weir_operator.cluster.ownership import Applied, applied, digest, must_apply, owned_fields
from weir_operator.cluster.store import ObjectStore
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.adoption import is_ours
from weir_operator.planning.kinds import (
    BATCH_JOB,
    CHILD_KINDS,
    FINALIZER,
    LLM_SERVICE,
    SERVICE_LABEL,
    Kind,
)
from weir_operator.planning.types import ChildRef, EventNote, Manifest

log = structlog.get_logger(__name__)

EVENT = Kind(api_version="events.k8s.io/v1", kind="Event", plural="events")
CONTROLLER = "weir.dev/operator"
MAX_NOTE_BYTES = 1024
_WRITTEN = {(kind.api_version, kind.kind): kind for kind in (LLM_SERVICE, BATCH_JOB, *CHILD_KINDS)}


class ForeignObjectError(ClusterError):
    """An object that is not ours has the name that a child would get: it is left alone."""

    permanent = True


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What was last applied to a child, and the fields of it that were ours then."""

    record: Applied
    fields: Mapping[str, Any]


class Writer:
    """Applies children, status and finalizers, deletes, and sends Events."""

    def __init__(
        self, api: ClusterApi, store: ObjectStore, *, metrics: OperatorMetrics, instance: str
    ) -> None:
        """``instance`` is named in Events as who reports."""
        self._api = api
        self._store = store
        self._metrics = metrics
        self._instance = instance
        self._memory: dict[tuple[str, str, str], _Memory] = {}

    async def apply_child(self, owner: Manifest, desired: Manifest) -> bool:
        """Applies a child where it differs; whether a write was needed.

        Raises:
            ForeignObjectError: an object of that name exists and is not the owner's.
            RefusedError: it is wrong, or has not got the label by which it is found.
            ClusterError: the API server's answer.
        """
        kind = kind_of(str(desired["apiVersion"]), str(desired["kind"]))
        namespace, name = str(desired["metadata"]["namespace"]), str(desired["metadata"]["name"])
        place = (kind.kind, namespace, name)
        live = self._store.get(kind, namespace, name)
        known = self._memory.get(place)
        if not must_apply(
            known.record if known else None, desired, live, known.fields if known else {}
        ):
            return False
        if live is None:
            await self._refuse_foreign(kind, namespace, name, owner)
        edited = live is not None and known is not None and known.record.desired == digest(desired)
        result = await self._apply(kind, desired, edited=edited)
        if _service_label(result) != _service_label(desired):  # no watch and no list would tell
            raise RefusedError(
                f"something takes its label {SERVICE_LABEL} off as it is applied, without which "
                "it is not seen: exempt it from that admission webhook or policy",
                reason="LabelTaken",
            )
        changed = live is None or _version(live) != _version(result)
        self._memory[place] = _Memory(record=applied(desired, result), fields=owned_fields(result))
        self._store.seen(kind, result, own_write=True)
        self._metrics.writes.labels("child", kind.kind).inc()
        if changed:
            log.info("child.applied", kind=kind.kind, namespace=namespace, name=name)
        return changed

    def has_child(self, owner: Manifest, kind: Kind) -> bool:
        """Whether the child of that kind is known to be there and to be the owner's."""
        metadata = owner["metadata"]
        live = self._store.get(kind, str(metadata["namespace"]), str(metadata["name"]))
        return live is not None and is_ours(live, owner)

    async def _apply(self, kind: Kind, desired: Manifest, *, edited: bool) -> dict[str, Any]:
        """Applies; ``edited``: that very wish was taken before, and somebody changed the object.

        Raises:
            RefusedError: with the remedy, where the edit is what excludes the wish.
            ClusterError: the API server's answer.
        """
        try:
            return await self._api.apply(kind, desired)
        except RefusedError as error:
            if not edited:
                raise
            raise RefusedError(
                f"somebody has changed {kind.kind} {desired['metadata']['name']} since it was "
                f"applied: take that back, or delete it, and it is made anew in a minute; {error}",
                status=error.status,
                reason=error.reason,
            ) from error

    async def _refuse_foreign(self, kind: Kind, namespace: str, name: str, owner: Manifest) -> None:
        """Only labelled objects are watched: one that is not shows here, before it is touched.

        Raises:
            ForeignObjectError: there is one.
        """
        try:
            found = await self._api.get(kind, namespace, name)
        except NotFoundError:
            return
        if not is_ours(found, owner):
            raise ForeignObjectError(
                f"{kind.kind} {name} exists and does not belong to this "
                f"{owner['kind']}: rename the {owner['kind']}, or delete the {kind.kind}",
                reason="AlreadyExists",
            )

    def forget_child(self, kind: Kind, namespace: str, name: str) -> None:
        """The next apply of this child is done in any case."""
        self._memory.pop((kind.kind, namespace, name), None)

    def forget_children(self, namespace: str, name: str) -> None:
        """Their LLMService is gone, and the API server takes them away: nothing of them is kept."""
        for kind in CHILD_KINDS:
            self.forget_child(kind, namespace, name)

    async def remove(self, ref: ChildRef) -> None:
        """Deletes that very object; gone already, or replaced by a namesake, is done.

        Raises:
            ClusterError: any other answer.
        """
        try:
            kind = kind_of(ref.api_version, ref.kind)
            await self._api.delete(kind, ref.namespace, ref.name, uid=ref.uid)
        except ConflictError:
            return
        self.forget_child(kind, ref.namespace, ref.name)
        self._metrics.writes.labels("removal", ref.kind).inc()
        log.info("object.deleted", kind=ref.kind, namespace=ref.namespace, name=ref.name)

    async def write_status(self, owner: Manifest, status: Manifest) -> Manifest | None:
        """Writes the status of that very version; the object as it is then.

        None when it has changed or is gone.

        The uid alone is no precondition here: the API server drops it from a status of a custom
        resource before it compares, so a namesake would get it.

        Raises:
            RefusedError: the CRD does not take it.
            ForbiddenError: the operator may not write it.
            ClusterError: any other answer.
        """
        kind = kind_of(str(owner["apiVersion"]), str(owner["kind"]))
        manifest = _identity(owner)
        manifest["metadata"]["resourceVersion"] = owner["metadata"]["resourceVersion"]
        manifest["status"] = status
        try:
            result = await self._api.apply(kind, manifest, status=True)
        except NotFoundError:
            self._store.gone(kind, owner)  # a watch that missed it would have its children made
            return None
        except ConflictError:
            return None
        except (RefusedError, ForbiddenError):
            self._metrics.status_refused.labels(kind.kind).inc()
            raise
        self._store.seen(kind, result, own_write=True)
        self._metrics.writes.labels("status", kind.kind).inc()
        return result

    async def set_finalizer(self, owner: Manifest, *, wanted: bool) -> bool:
        """Adds or removes our finalizer on that very object; False when it is gone.

        Raises:
            ClusterError: any other answer.
        """
        kind = kind_of(str(owner["apiVersion"]), str(owner["kind"]))
        manifest = _identity(owner)
        if wanted:
            manifest["metadata"]["finalizers"] = [FINALIZER]
        try:
            result = await self._api.apply(kind, manifest)
        except (NotFoundError, ConflictError):
            return False
        if not wanted:
            result = await self._strip_finalizer(kind, result)
        left = result["metadata"].get("finalizers") or ()
        if result["metadata"].get("deletionTimestamp") is None or left:
            self._store.seen(kind, result, own_write=True)
        self._metrics.writes.labels("finalizer", kind.kind).inc()
        if not wanted:
            reason = "deleted" if owner["metadata"].get("deletionTimestamp") else "ended"
            self._metrics.releases.labels(reason).inc()
            log.info(
                "finalizer.released",
                kind=kind.kind,
                namespace=owner["metadata"]["namespace"],
                name=owner["metadata"]["name"],
                reason=reason,
            )
        return True

    async def _strip_finalizer(self, kind: Kind, live: dict[str, Any]) -> dict[str, Any]:
        """Takes our finalizer off where an apply left it; the object as it is then.

        Who makes a BatchJob from another one's manifest owns the finalizer in it, and an apply
        takes away only what is ours.

        Raises:
            ClusterError: the API server's answer; a conflict when somebody changed the object.
        """
        finalizers = live["metadata"].get("finalizers") or ()
        if FINALIZER not in finalizers:
            return live
        manifest = _identity(live)
        manifest["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        manifest["metadata"]["finalizers"] = [name for name in finalizers if name != FINALIZER]
        return await self._api.merge(kind, manifest)

    async def send_event(self, owner: Manifest, note: EventNote) -> None:
        """Sends an Event. One that is refused is counted and logged: nothing depends on it."""
        outcome = "sent"
        try:
            await self._api.create(
                EVENT, _event(owner, note, at=datetime.now(UTC), instance=self._instance)
            )
        except NamespaceTerminatingError:
            outcome = "namespace_terminating"
        except ForbiddenError as error:
            outcome = "forbidden"
            log.warning("event.refused", reason=note.reason, error=str(error))
        except ClusterError as error:
            outcome = "failed"
            log.warning("event.failed", reason=note.reason, error=str(error))
        self._metrics.events.labels(outcome).inc()
        log.info(
            "event",
            kind=owner["kind"],
            namespace=owner["metadata"]["namespace"],
            name=owner["metadata"]["name"],
            type=note.type,
            reason=note.reason,
        )


def kind_of(api_version: str, kind: str) -> Kind:
    """The kind of a manifest.

    Raises:
        KeyError: this operator does not write that kind.
    """
    return _WRITTEN[api_version, kind]


def _identity(owner: Manifest) -> dict[str, Any]:
    """The least that names an object: with the uid, an apply can never make one."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "metadata": {
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def _event(owner: Manifest, note: EventNote, *, at: datetime, instance: str) -> Manifest:
    metadata = owner["metadata"]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "namespace": metadata["namespace"],
            "generateName": f"{str(metadata['name'])[:200]}-",
        },
        "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": note.type,
        "reason": note.reason,
        "action": note.reason,
        "note": _cut(note.message, MAX_NOTE_BYTES),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def _cut(text: str, most_bytes: int) -> str:
    """The text, cut between two characters to so many bytes, which the API server counts."""
    content, mark = text.encode(), "…"
    if len(content) <= most_bytes:
        return text
    return content[: most_bytes - len(mark.encode())].decode(errors="ignore") + mark


def _version(item: Manifest) -> str:
    return str(item["metadata"].get("resourceVersion"))


def _service_label(item: Manifest) -> object:
    return (item["metadata"].get("labels") or {}).get(SERVICE_LABEL)
