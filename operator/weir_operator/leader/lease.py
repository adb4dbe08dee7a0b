"""What a Lease says and what to do about it. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Decision = Literal["create", "renew", "take", "wait"]

_MOST_TRANSITIONS = 2**31 - 1  # more is no Lease to the API server


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """A Lease as it was read. ``holder`` None: released. ``lease_s``: as its holder wants it."""

    holder: str | None
    lease_s: float
    transitions: int
    resource_version: str
    manifest: Mapping[str, Any]

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> LeaseRecord:
        """The record of a Lease as the API server shows it."""
        spec = manifest.get("spec") or {}
        return cls(
            holder=spec.get("holderIdentity") or None,
            lease_s=float(spec.get("leaseDurationSeconds") or 0),
            transitions=int(spec.get("leaseTransitions") or 0),
            resource_version=str(manifest["metadata"]["resourceVersion"]),
            manifest=manifest,
        )


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """A version of the Lease, and the monotonic time at which it was first seen here.

    The Lease's own timestamps are another machine's clock: they decide nothing.
    """

    resource_version: str
    seen_at_s: float


def sight(previous: Sighting | None, record: LeaseRecord, *, now_s: float) -> Sighting:
    """The sighting of a record: an unchanged version keeps the time of its first sight."""
    if previous is not None and previous.resource_version == record.resource_version:
        return previous
    return Sighting(resource_version=record.resource_version, seen_at_s=now_s)


def decide(
    record: LeaseRecord | None,
    sighting: Sighting | None,
    *,
    me: str,
    own_lease_s: float,
    now_s: float,
) -> Decision:
    """What to do about the Lease now. A holder's silence counts from when we first saw it.

    The longer of the holder's lease and ours counts, so that settings in change keep one leader.
    """
    if record is None:
        return "create"
    if record.holder == me:
        return "renew"
    if record.holder is None:
        return "take"
    lease_s = max(record.lease_s, own_lease_s)
    if sighting is not None and now_s - sighting.seen_at_s >= lease_s:
        return "take"
    return "wait"


def next_manifest(
    record: LeaseRecord | None,
    *,
    namespace: str,
    name: str,
    me: str,
    lease_s: float,
    now: datetime,
) -> dict[str, Any]:
    """The Lease with us as its holder; an update carries the version that was read."""
    stamp = _micro_time(now)
    spec = dict((record.manifest.get("spec") or {}) if record else {})
    taken = record is None or record.holder != me
    spec.update(
        holderIdentity=me,
        leaseDurationSeconds=max(1, round(lease_s)),
        renewTime=stamp,
        leaseTransitions=min(record.transitions + taken, _MOST_TRANSITIONS) if record else 0,
    )
    if taken:
        spec["acquireTime"] = stamp
    return _lease(record, namespace=namespace, name=name, spec=spec)


def released_manifest(
    record: LeaseRecord, *, namespace: str, name: str, now: datetime
) -> dict[str, Any]:
    """The Lease without a holder: the next replica need not wait."""
    spec = dict(record.manifest.get("spec") or {})
    spec.update(holderIdentity="", leaseDurationSeconds=1, renewTime=_micro_time(now))
    return _lease(record, namespace=namespace, name=name, spec=spec)


def _lease(
    record: LeaseRecord | None, *, namespace: str, name: str, spec: dict[str, Any]
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name}
    if record is not None:
        metadata = dict(record.manifest["metadata"])
        metadata.pop("managedFields", None)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }


def _micro_time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
