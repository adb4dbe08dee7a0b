"""Executes a `Plan` in its order; every step may be repeated, and the next plan sees the rest."""

from __future__ import annotations

from typing import Protocol

import structlog

from weir_operator.backoff import Clock
from weir_operator.cluster.errors import (
    HTTP_CONFLICT,
    ClusterError,
    ForbiddenError,
    NamespaceTerminatingError,
    NotFoundError,
)
from weir_operator.cluster.ownership import digest
from weir_operator.cluster.writer import Writer
from weir_operator.control_plane.client import (
    BATCH_NOT_FOUND,
    ControlPlaneClient,
    ControlPlaneError,
    HeardJob,
    HeardService,
)
from weir_operator.control_plane.reports import ASK_AGAIN_S, ReportBook
from weir_operator.planning.kinds import BATCH_JOB
from weir_operator.planning.observed import Refusal
from weir_operator.planning.types import (
    CancelBatch,
    ControlPlaneRequest,
    ForgetBatch,
    Manifest,
    ObjectKey,
    Plan,
    PutBatchJob,
    RegisterPods,
    ReleaseService,
)
from weir_operator.reconcile.gate import StatusGate
from weir_operator.reconcile.observe import child_place, job_place
from weir_operator.workqueue import RetryError

log = structlog.get_logger(__name__)

LATER_S = 2.0
"""Asked again after this when the control plane does not answer."""
STALE_S = 0.5
"""Planned again after this when the object had changed: the watch brings its new version."""


class _Times:
    """When to look again: the soonest of all wishes."""

    def __init__(self) -> None:
        self.next_s: float | None = None

    def within(self, delay_s: float | None) -> None:
        """Look again after this at the latest."""
        if delay_s is not None:
            self.next_s = delay_s if self.next_s is None else min(self.next_s, delay_s)


class Reached(Protocol):
    """Hears of every call to the control plane whether it answered."""

    def __call__(self, *, answered: bool, reason: str = "") -> None:
        """It answered, or it did not for a reason."""
        ...


class Executor:
    """Carries plans out."""

    def __init__(
        self,
        writer: Writer,
        client: ControlPlaneClient,
        reports: ReportBook,
        gate: StatusGate,
        *,
        clock: Clock,
        on_reached: Reached,
    ) -> None:
        self._writer = writer
        self._client = client
        self._reports = reports
        self._gate = gate
        self._clock = clock
        self._on_reached = on_reached
        self._sent: dict[str, PutBatchJob] = {}

    async def execute(self, key: ObjectKey, owner: Manifest, plan: Plan) -> float | None:
        """Carries a plan out; after how many seconds to plan again, None: only after a change.

        Raises:
            RetryError: the cluster refused or did not answer; what was done stays done.
            NotLeaderError: this replica leads no longer.
        """
        times = _Times()
        times.within(plan.requeue_after_s)
        try:
            await self._steps(key, owner, plan, times)
        except NamespaceTerminatingError:
            log.info("namespace.terminating", kind=key.kind, namespace=key.namespace, name=key.name)
            if plan.finalizer is False:
                await self._release(owner)
            return None
        except ClusterError as error:
            raise RetryError(str(error)) from error
        return times.next_s

    async def _steps(self, key: ObjectKey, owner: Manifest, plan: Plan, times: _Times) -> None:
        if plan.finalizer is True and not await self._writer.set_finalizer(owner, wanted=True):
            return  # it is gone: its own event follows
        if await self._apply_children(key, owner, plan, times):
            times.within(0.0)  # our own writes enqueue nothing: look at their result
        for ref in plan.removals:
            await self._writer.remove(ref)
        if plan.finalizer is True and await self._submit(key, owner, plan, times):
            return  # its answer is in the next plan: one status tells of both
        await self._write_status(owner, plan, times)
        for request in plan.requests:
            await self._ask(key, owner, request, times)
        if plan.finalizer is False:
            await self._writer.set_finalizer(owner, wanted=False)

    async def _submit(self, key: ObjectKey, owner: Manifest, plan: Plan, times: _Times) -> bool:
        """Asks for a batch before anything is said of it; whether the control plane has it now.

        Once a BatchJob: the finalizer is set then, and the next plan finds what was heard.
        """
        submissions = [item for item in plan.requests if isinstance(item, PutBatchJob)]
        for request in submissions:
            await self._ask(key, owner, request, times)
        return any(self._reports.job(request.uid) is not None for request in submissions)

    async def _release(self, owner: Manifest) -> None:
        try:
            await self._writer.set_finalizer(owner, wanted=False)
        except ClusterError as error:
            raise RetryError(str(error)) from error

    # --- the cluster -----------------------------------------------------------------------

    async def _apply_children(
        self, key: ObjectKey, owner: Manifest, plan: Plan, times: _Times
    ) -> bool:
        """Applies every child; whether there is news of any. One refused child stops no other.

        Raises:
            ClusterError: a failure that may pass; the queue repeats it.
        """
        news = False
        for child in plan.children:
            place = (*child_place(key), str(child["kind"]), str(child["metadata"]["name"]))
            wish = digest(child)
            held_s = self._reports.held_s(place, wish=wish)
            if held_s > 0:
                times.within(held_s)
                continue
            try:
                news |= await self._writer.apply_child(owner, child)
                news |= self._reports.accept(place)
            except ClusterError as error:
                if not _says_no(error):
                    raise
                refusal = Refusal(
                    generation=_generation(owner),
                    status_code=error.status or HTTP_CONFLICT,
                    code=error.reason or "Refused",
                    message=str(error),
                )
                news |= self._reports.refuse(place, refusal, wish=wish)
                times.within(ASK_AGAIN_S)
                log.warning("child.refused", namespace=key.namespace, child=place[-2:])
        return news

    async def _write_status(self, owner: Manifest, plan: Plan, times: _Times) -> None:
        """Writes the status when it may be written now; Events follow it, so each is said once."""
        if plan.status is not None:
            wait_s = self._gate.wait_s(str(owner["metadata"]["uid"]))
            if wait_s > 0:
                times.within(wait_s)
                return
            if not await self._writer.write_status(owner, plan.status):
                times.within(STALE_S)
                return
            if owner["kind"] == BATCH_JOB.kind:
                times.within(0.0)  # what comes next may depend on what has been written
        for note in plan.events:
            await self._writer.send_event(owner, note)

    # --- the control plane -----------------------------------------------------------------

    async def _ask(
        self, key: ObjectKey, owner: Manifest, request: ControlPlaneRequest, times: _Times
    ) -> None:
        """One request, and what its answer means for the next look."""
        place, wish = _place(key, request), digest(repr(request))  # an input may be large
        held_s = self._reports.held_s(place, wish=wish)
        if held_s > 0:
            times.within(held_s)
            return
        try:
            await self._call(request)
        except ControlPlaneError as error:
            self._on_reached(answered=not error.unreachable, reason=str(error))
            if error.code == BATCH_NOT_FOUND:
                times.within(0.0)
                return
            log.info("control_plane.refused", code=error.code, reason=str(error))
            if error.unreachable:
                times.within(LATER_S)
                return
            refusal = Refusal(
                generation=_generation(owner),
                status_code=error.status or 0,
                code=error.code,
                message=str(error),
            )
            if self._reports.refuse(place, refusal, wish=wish):
                times.within(0.0)
            times.within(ASK_AGAIN_S)
        else:
            self._on_reached(answered=True)
            if self._reports.accept(place):
                times.within(0.0)

    async def _call(self, request: ControlPlaneRequest) -> None:
        """One call, left out when its answer is known; the answer goes into the reports.

        Raises:
            ControlPlaneError: no answer, or a refusal.
        """
        if self._known(request):
            return
        asked_at_s = self._clock()
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
            self._sent[request.uid] = request

    def _known(self, request: ControlPlaneRequest) -> bool:
        """Whether the control plane is known to have exactly this already."""
        match request:
            case PutBatchJob():
                sent = self._sent.get(request.uid)
                return self._reports.job(request.uid) is not None and sent == request
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

    def forget(self, key: ObjectKey) -> None:
        """The object is gone: what was refused to it counts for no namesake."""
        self._reports.forget_refusals(child_place(key))

    def forget_sent(self) -> None:
        """Everything is asked for once more."""
        self._sent.clear()


def _generation(owner: Manifest) -> int:
    return int(owner["metadata"].get("generation") or 0)


def _says_no(error: ClusterError) -> bool:
    """Whether a child's failure is said in a condition rather than retried with backoff."""
    if isinstance(error, NamespaceTerminatingError):
        return False
    return error.permanent or isinstance(error, ForbiddenError | NotFoundError)


def _place(key: ObjectKey, request: ControlPlaneRequest) -> tuple[str, ...]:
    match request:
        case PutBatchJob() | CancelBatch() | ForgetBatch():
            return (*job_place(request.uid), type(request).__name__)
        case RegisterPods() | ReleaseService():
            return (*child_place(key), type(request).__name__, request.name)


def _registered(heard: HeardService, request: RegisterPods) -> bool:
    """Whether the control plane already has exactly this registration."""
    report = heard.report
    return (
        report.model == request.model
        and report.service_account == request.service_account
        and {pod.uid for pod in report.pods} == {pod.uid for pod in request.pods}
    )
