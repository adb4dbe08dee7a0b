"""What the control plane last said of each BatchJob and service, and what was refused.

Used in one loop only. A bulk answer never overrides what was learnt after it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weir_operator.backoff import Clock
from weir_operator.control_plane.client import HeardJob, HeardService
from weir_operator.planning.kinds import BATCH_JOB, LLM_SERVICE
from weir_operator.planning.observed import Refusal, ServiceReport
from weir_operator.planning.types import ObjectKey

ASK_AGAIN_S = 60.0
"""A refusal may rest on something besides the object (a tenant, a quota, a role): the same wish is
tried again after this."""
MOST_CORRECTIONS, CORRECTIONS_S = 5, 600.0
"""A child that something changes back more often in this time is put right once in ASK_AGAIN_S."""
UNANSWERED_S = 10.0
"""What got no answer to the wish, or a server's error, is tried again after this."""

Place = tuple[str, ...]
"""What was refused, from the general to the particular."""


@dataclass(frozen=True, kw_only=True)
class _Refused:
    refusal: Refusal
    wish: Hashable
    until_s: float


class ReportBook:
    """The latest answers."""

    def __init__(
        self,
        enqueue: Callable[[ObjectKey], None],
        *,
        on_reached: Callable[[], None],
        clock: Clock,
    ) -> None:
        """``enqueue`` gets the key of every object whose report changed.

        ``on_reached`` is called when `reached` changes, which concerns every object.
        """
        self._enqueue = enqueue
        self._on_reached = on_reached
        self._clock = clock
        self._jobs: dict[str, HeardJob] = {}
        self._jobs_asked_s: dict[str, float] = {}
        self._services: dict[tuple[str, str], HeardService] = {}
        self._services_asked_s: dict[tuple[str, str], float] = {}
        self._told: dict[tuple[str, str], ServiceReport] = {}
        self._measured_s: dict[tuple[str, str], float] = {}
        self._refusals: dict[Place, _Refused] = {}
        self._failing_since_s: dict[Place, float] = {}
        self._applied: dict[Place, tuple[Hashable, tuple[float, ...]]] = {}  # wish, and when
        self._complete = False
        self._up = False
        self._complaint: str | None = None

    @property
    def reached(self) -> bool:
        """Whether it answers, and all that it knows has been read once."""
        return self._up and self._complete

    @property
    def complaint(self) -> str | None:
        """Why it answers, and not what was asked: it refuses the operator, or is no such thing."""
        return self._complaint

    def job(self, uid: str) -> HeardJob | None:
        """What it said of a BatchJob."""
        return self._jobs.get(uid)

    def service(self, namespace: str, name: str) -> HeardService | None:
        """What it said of a service."""
        return self._services.get((namespace, name))

    def slo_silence_s(self, namespace: str, name: str) -> float | None:
        """How long ago an objective of the service was measured; None: not since this began."""
        at_s = self._measured_s.get((namespace, name))
        return None if at_s is None else self._clock() - at_s

    def reach(self, *, answered: bool, complaint: str | None = None) -> bool:
        """Whether it answered just now; returns whether that is news.

        ``complaint``: what it said in the place of an answer.
        """
        news = (self._up, self._complaint) != (answered, complaint)
        self._up, self._complaint = answered, complaint
        if news and (self._complete or complaint is not None):
            self._on_reached()
        return news

    # --- answers -----------------------------------------------------------------------------

    def heard_job(self, job: HeardJob, *, asked_at_s: float) -> None:
        """An answer about one BatchJob."""
        if self._jobs_asked_s.get(job.uid, float("-inf")) > asked_at_s:
            return
        known = self._jobs.get(job.uid)
        self._jobs[job.uid] = job
        self._jobs_asked_s[job.uid] = asked_at_s
        if known != job:
            self._enqueue(_job_key(job))

    def heard_service(self, service: HeardService, *, asked_at_s: float) -> None:
        """An answer about one service."""
        place = (service.namespace, service.name)
        if self._services_asked_s.get(place, float("-inf")) > asked_at_s:
            return
        self._services[place] = service
        self._services_asked_s[place] = asked_at_s
        if any(item.measured_s is not None for pod in service.report.pods for item in pod.slo):
            self._measured_s[place] = self._clock()
        lasting = _lasting(service.report)
        if self._told.get(place) != lasting:
            self._told[place] = lasting
            self._enqueue(_service_key(service))

    def heard_all(
        self,
        jobs: Iterable[HeardJob],
        services: Iterable[HeardService],
        *,
        asked_at_s: float,
    ) -> None:
        """The complete answer: what it lacks and was not learnt since is not known there."""
        uids, places = set(), set()
        for job in jobs:
            uids.add(job.uid)
            self.heard_job(job, asked_at_s=asked_at_s)
        for service in services:
            places.add((service.namespace, service.name))
            self.heard_service(service, asked_at_s=asked_at_s)
        for uid, known in list(self._jobs.items()):
            if uid not in uids and self._jobs_asked_s[uid] <= asked_at_s:
                self.forget_job(uid)
                self._enqueue(_job_key(known))
        for place, lost in list(self._services.items()):
            if place not in places and self._services_asked_s[place] <= asked_at_s:
                self.forget_service(*place)
                self._enqueue(_service_key(lost))
        if not self._complete:
            self._complete = True
            self._on_reached()

    def forget_job(self, uid: str) -> None:
        """It knows this BatchJob no longer."""
        self._jobs.pop(uid, None)
        self._jobs_asked_s.pop(uid, None)

    def forget_service(self, namespace: str, name: str) -> None:
        """It knows this service no longer."""
        for kept in (self._services, self._services_asked_s, self._told, self._measured_s):
            kept.pop((namespace, name), None)

    # --- refusals ----------------------------------------------------------------------------

    def changed_back(self, place: Place, *, wish: Hashable) -> bool:
        """An apply changed a child; whether something has undone that wish again and again."""
        now_s = self._clock()
        before_wish, before_s = self._applied.get(place, (wish, ()))
        lately_s = before_s if before_wish == wish else ()
        lately_s = (*(at_s for at_s in lately_s if now_s - at_s < CORRECTIONS_S), now_s)
        self._applied[place] = wish, lately_s[-MOST_CORRECTIONS - 1 :]
        return len(lately_s) > MOST_CORRECTIONS

    def refuse(
        self, place: Place, refusal: Refusal, *, wish: Hashable, hold_s: float = ASK_AGAIN_S
    ) -> bool:
        """A wish was refused, and is held for a while; returns whether that is news."""
        known = self._refusals.get(place)
        until_s = self._clock() + hold_s
        self._refusals[place] = _Refused(refusal=refusal, wish=wish, until_s=until_s)
        return known is None or known.refusal != refusal

    def failing_s(self, place: Place) -> float:
        """A wish has failed again, which may pass; for how long it does so, in seconds."""
        now_s = self._clock()
        return now_s - self._failing_since_s.setdefault(place, now_s)

    def accept(self, place: Place) -> bool:
        """A wish was accepted; returns whether one had been refused before."""
        self._failing_since_s.pop(place, None)
        return self._refusals.pop(place, None) is not None

    def held_s(self, place: Place, *, wish: Hashable) -> float:
        """How long to wait before the same wish is tried again; 0: try now."""
        known = self._refusals.get(place)
        if known is None or known.wish != wish:
            return 0.0
        return max(0.0, known.until_s - self._clock())

    def refusal(self, place: Place) -> Refusal | None:
        """The refusal of a place, until something is accepted there."""
        known = self._refusals.get(place)
        return None if known is None else known.refusal

    def refusals_under(self, prefix: Place) -> Mapping[Place, Refusal]:
        """The refusals below a place, by the rest of their place."""
        return {
            place[len(prefix) :]: known.refusal
            for place, known in self._refusals.items()
            if place[: len(prefix)] == prefix
        }

    def forget_refusals(self, prefix: Place) -> None:
        """The object is gone."""
        kept: dict[Place, Any]
        for kept in (self._refusals, self._failing_since_s, self._applied):
            for place in [place for place in kept if place[: len(prefix)] == prefix]:
                del kept[place]


def _job_key(job: HeardJob) -> ObjectKey:
    return ObjectKey(kind=BATCH_JOB.kind, namespace=job.namespace, name=job.name)


def _service_key(service: HeardService) -> ObjectKey:
    return ObjectKey(kind=LLM_SERVICE.kind, namespace=service.namespace, name=service.name)


def _lasting(report: ServiceReport) -> ServiceReport:
    """Without what changes with every sync; ``policy_fresh`` says what counts of a policy's end."""
    return replace(report, pods=tuple(replace(pod, policy_expires_at=None) for pod in report.pods))
