"""What the operator asked of the API server, counted from the audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from e2e.cluster.audit import Call
from weir_operator.cluster.api import LIST_PAGE

HOUR_S = 3600.0
RESYNCS_AN_HOUR = 6
"""Full lists of every kind: one in ten minutes (``resync_s``)."""
WATCHES_AN_HOUR = 12
"""Each watch ends after 300 s; kopf lists the kind and watches anew."""
PROBES_A_RESYNC = 4
"""A resync first asks which of four kinds the cluster has."""


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The operator's calls of one span, lists and watches left out.

    ``jobs`` and ``services`` are without their Events; ``services`` is with children.
    """

    jobs: int
    services: int
    events: int
    lease: int
    writes: int
    by_resource: dict[str, int]

    @property
    def objects(self) -> int:
        """Calls that objects cause."""
        return self.jobs + self.services + self.events


def count(calls: Iterable[Call], *, user_agent: str) -> Calls:
    """The operator's own among all calls; ``writes`` is without its Lease."""
    mine = [call for call in calls if call.user_agent == user_agent]
    direct = [call for call in mine if call.resource and call.verb != "list"]
    lease = sum(call.resource == "leases" for call in direct)
    events = sum(call.resource == "events" for call in direct)
    jobs = sum(call.resource == "batchjobs" for call in direct)
    return Calls(
        jobs=jobs,
        services=len(direct) - lease - events - jobs,
        events=events,
        lease=lease,
        writes=sum(call.writes and call.resource != "leases" for call in direct),
        by_resource=dict(Counter(_name(call) for call in mine).most_common()),
    )


def calls_an_hour(span: Calls, span_s: float, *, kinds: Mapping[str, int]) -> float:
    """Calls an hour of standing still: those of a span, and those that come less often than it.

    ``kinds``: how many objects of each watched kind there are.
    """
    pages = sum(max(1, ceil(number / LIST_PAGE)) for number in kinds.values())
    resyncs = RESYNCS_AN_HOUR * (pages + PROBES_A_RESYNC)
    watches = WATCHES_AN_HOUR * (pages + len(kinds))
    return (span.objects + span.lease) * HOUR_S / span_s + resyncs + watches


def _name(call: Call) -> str:
    resource = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
    return f"{call.verb} {resource or 'discovery'}"
