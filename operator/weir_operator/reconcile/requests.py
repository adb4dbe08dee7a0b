"""What a plan asks of the control plane: asked once, held back for a while when it was refused.

A call that fails says nothing of the others: whether the control plane is there at all is found by
`control_plane.progress`, which asks for everything.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime

import structlog

from weir_operator.backoff import Clock
from weir_operator.cluster.ownership import digest
from weir_operator.control_plane.client import (
    BATCH_NOT_FOUND,
    ControlPlaneClient,
    ControlPlaneError,
    HeardJob,
    HeardService,
)
from weir_operator.control_plane.reports import ASK_AGAIN_S, UNANSWERED_S, Place, ReportBook
from weir_operator.planning.observed import Refusal
from weir_operator.planning.types import (
    CancelBatch,
    ControlPlaneRequest,
    ForgetBatch,
    ObjectKey,
    PutBatchJob,
    RegisterPods,
    ReleaseService,
)
from weir_operator.planning.wire import in_the_spec
from weir_operator.reconcile.observe import child_place, job_place

log = structlog.get_logger(__name__)

_Wish = tuple[bool, int, datetime | None]
"""What a PUT of a known BatchJob can change: suspended, priority, deadline."""

PAUSE_S = 5.0
"""After a call without an answer others of its kind wait: else they could hold all workers."""


class Requests:
    """Asks, and puts what it hears into the reports."""

    def __init__(
        self,
        client: ControlPlaneClient,
        reports: ReportBook,
        *,
        clock: Clock,
    ) -> None:
        self._client = client
        self._reports = reports
        self._clock = clock
        self._sent: dict[str, _Wish] = {}
        self._paused_until_s: dict[type[ControlPlaneRequest], float] = {}

    async def ask(self, key: ObjectKey, request: ControlPlaneRequest) -> float | None:
        """Asks, unless the same was refused lately; after how many seconds at most to look again.

        None: the answer asks for no look.
        """
        place, wish = _place(key, request), digest(repr(request))  # an input may be large
        if not self._known(request):
            held_s = max(self._reports.held_s(place, wish=wish), self._pause_s(request))
            if held_s > 0:
                return held_s
            try:
                await self._call(request)
            except ControlPlaneError as error:
                return self._refused(place, request, error, wish=wish)
        return 0.0 if self._reports.accept(place) else None

    def _pause_s(self, request: ControlPlaneRequest) -> float:
        return self._paused_until_s.get(type(request), 0.0) - self._clock()

    def _refused(
        self,
        place: Place,
        request: ControlPlaneRequest,
        error: ControlPlaneError,
        *,
        wish: Hashable,
    ) -> float:
        """After how many seconds at most to look again."""
        if error.code == BATCH_NOT_FOUND:
            return 0.0
        log.info("control_plane.refused", code=error.code, reason=str(error))
        if error.status is None:
            self._paused_until_s[type(request)] = self._clock() + PAUSE_S
        hold_s = UNANSWERED_S if error.unreachable else ASK_AGAIN_S
        why = in_the_spec(str(error)) if isinstance(request, PutBatchJob) else str(error)
        refusal = Refusal(status_code=error.status or 0, code=error.code, message=why)
        news = self._reports.refuse(place, refusal, wish=wish, hold_s=hold_s)
        return 0.0 if news else hold_s

    async def _call(self, request: ControlPlaneRequest) -> None:
        """One call; the answer goes into the reports.

        Raises:
            ControlPlaneError: no answer, or a refusal.
        """
        asked_at_s = self._clock()
        if isinstance(request, PutBatchJob):  # without an answer it may have been carried out
            self._sent.pop(request.uid, None)
        try:
            heard = await self._client.perform(request)
        except ControlPlaneError as error:
            if error.code == BATCH_NOT_FOUND and isinstance(request, PutBatchJob):
                self._reports.forget_job(request.uid)
            raise
        match heard:
            case HeardJob():
                self._reports.heard_job(heard, asked_at_s=asked_at_s)
            case HeardService():
                self._reports.heard_service(heard, asked_at_s=asked_at_s)
            case None:
                self._forget(request)
        if isinstance(request, PutBatchJob):
            self._sent[request.uid] = _wish(request)

    def _known(self, request: ControlPlaneRequest) -> bool:
        """Whether the control plane is known to have exactly this already."""
        match request:
            case PutBatchJob():
                known = self._reports.job(request.uid)
                return (
                    known is not None
                    and known.report.suspended == request.suspended
                    and self._sent.get(request.uid) == _wish(request)
                )
            case RegisterPods():
                heard = self._reports.service(request.namespace, request.name)
                return heard is not None and _registered(heard, request)
            case _:
                return False

    def _forget(self, request: ControlPlaneRequest) -> None:
        match request:
            case CancelBatch() | ForgetBatch():
                self._reports.forget_job(request.uid)
                self._sent.pop(request.uid, None)
            case ReleaseService():
                self._reports.forget_service(request.namespace, request.name)
            case _:
                return

    def forget_sent(self) -> None:
        """Everything is asked for once more."""
        self._sent.clear()


def _place(key: ObjectKey, request: ControlPlaneRequest) -> tuple[str, ...]:
    match request:
        case PutBatchJob() | CancelBatch() | ForgetBatch():
            return (*job_place(key, request.uid), type(request).__name__)
        case RegisterPods() | ReleaseService():
            return (*child_place(key), type(request).__name__, request.name)


def _wish(request: PutBatchJob) -> _Wish:
    return request.suspended, request.priority, request.deadline


def _registered(heard: HeardService, request: RegisterPods) -> bool:
    """Whether the control plane already has exactly this registration."""
    report = heard.report
    return (
        report.model == request.model
        and report.service_account == request.service_account
        and {pod.uid for pod in report.pods} == {pod.uid for pod in request.pods}
    )
