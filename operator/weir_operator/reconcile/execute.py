"""Executes a `Plan` in its order; every step may be repeated, and the next plan sees the rest."""

from __future__ import annotations

import structlog

from weir_operator.cluster.errors import (
    HTTP_CONFLICT,
    ClusterError,
    ForbiddenError,
    NamespaceTerminatingError,
    NotFoundError,
)
from weir_operator.cluster.ownership import digest
from weir_operator.cluster.writer import Writer
from weir_operator.control_plane.reports import ASK_AGAIN_S, UNANSWERED_S, Place, ReportBook
from weir_operator.planning.kinds import BATCH_JOB, LLM_SERVICE
from weir_operator.planning.observed import Refusal
from weir_operator.planning.types import Manifest, ObjectKey, Plan, PutBatchJob
from weir_operator.reconcile.gate import StatusGate
from weir_operator.reconcile.observe import child_place, job_place
from weir_operator.reconcile.requests import Requests
from weir_operator.workqueue import RetryError

log = structlog.get_logger(__name__)

TOLD_AFTER_S = 10.0
"""A child that fails for so long, for reasons that pass by themselves, is told of in the status."""
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


class Executor:
    """Carries plans out."""

    def __init__(
        self,
        writer: Writer,
        requests: Requests,
        reports: ReportBook,
        gate: StatusGate,
    ) -> None:
        self._writer = writer
        self._requests = requests
        self._reports = reports
        self._gate = gate

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
            times.within(0.0)
            return  # the next plan knows it: this one's status would say otherwise
        for ref in plan.removals:
            await self._writer.remove(ref)
        if plan.finalizer is True and await self._submit(key, plan, times):
            return  # its answer is in the next plan: one status tells of both
        await self._write_status(owner, plan, times)
        for request in plan.requests:
            times.within(await self._requests.ask(key, request))
        if plan.finalizer is False:
            await self._writer.set_finalizer(owner, wanted=False)

    async def _submit(self, key: ObjectKey, plan: Plan, times: _Times) -> bool:
        """Asks for a batch before anything is said of it; whether the control plane has it now.

        Once a BatchJob: the finalizer is set then, and the next plan finds what was heard.
        """
        submissions = [item for item in plan.requests if isinstance(item, PutBatchJob)]
        for request in submissions:
            times.within(await self._requests.ask(key, request))
        return any(self._reports.job(request.uid) is not None for request in submissions)

    async def _release(self, owner: Manifest) -> None:
        try:
            await self._writer.set_finalizer(owner, wanted=False)
        except ClusterError as error:
            raise RetryError(str(error)) from error

    async def _apply_children(
        self, key: ObjectKey, owner: Manifest, plan: Plan, times: _Times
    ) -> bool:
        """Applies every child; whether one is refused since now, or is so no longer.

        One refused child stops no other, nor does one that fails.

        Raises:
            NamespaceTerminatingError: nothing can be made there any more.
            ClusterError: the first failure that may pass; the queue repeats it.
        """
        news = False
        failed: ClusterError | None = None
        for child in plan.children:
            place = (*child_place(key), str(child["kind"]), str(child["metadata"]["name"]))
            wish = digest(child)
            held_s = self._reports.held_s(place, wish=wish)
            if held_s > 0:
                times.within(held_s)
                continue
            try:
                if await self._writer.apply_child(owner, child):
                    times.within(0.0)  # our own writes enqueue nothing: look at their result
                news |= self._reports.accept(place)
            except NamespaceTerminatingError:
                raise
            except ClusterError as error:
                if not _says_no(error) and self._reports.failing_s(place) < TOLD_AFTER_S:
                    failed = failed or error
                    continue
                news |= self._refused(place, child, error, times)
        if failed is not None:
            raise failed
        return news

    def _refused(self, place: Place, child: Manifest, error: ClusterError, times: _Times) -> bool:
        """Keeps what the API server says of a child; whether that is news."""
        refusal = Refusal(
            status_code=error.status or HTTP_CONFLICT,
            code=error.reason or "Refused",
            message=str(error),
            wish=child,
        )
        hold_s = ASK_AGAIN_S if _says_no(error) else UNANSWERED_S
        times.within(hold_s)
        log.warning("child.refused", namespace=child["metadata"]["namespace"], child=place[-2:])
        return self._reports.refuse(place, refusal, wish=digest(child), hold_s=hold_s)

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

    def forget(self, key: ObjectKey) -> None:
        """The object is gone: what was applied for it or refused to it counts for no namesake."""
        self._reports.forget_refusals(child_place(key))
        self._reports.forget_refusals(job_place(key))
        if key.kind == LLM_SERVICE.kind:
            self._writer.forget_children(key.namespace, key.name)


def _says_no(error: ClusterError) -> bool:
    """Whether a child's failure is said in a condition at once, not retried with backoff first."""
    return error.permanent or isinstance(error, ForbiddenError | NotFoundError)
