"""Executes a `Plan` in its order; every step may be repeated, and the next plan sees the rest."""

from __future__ import annotations

import structlog

from weir_operator.cluster.errors import (
    ClusterError,
    ForbiddenError,
    NamespaceTerminatingError,
    RefusedError,
)
from weir_operator.cluster.writer import Writer
from weir_operator.control_plane.reports import ASK_AGAIN_S, ReportBook
from weir_operator.planning.kinds import BATCH_JOB, FINALIZER, LLM_SERVICE
from weir_operator.planning.observed import Refusal
from weir_operator.planning.types import EventNote, Manifest, ObjectKey, Plan, PutBatchJob
from weir_operator.reconcile.children import Children
from weir_operator.reconcile.gate import StatusGate
from weir_operator.reconcile.observe import child_place, finalizer_place, job_place
from weir_operator.reconcile.requests import Requests
from weir_operator.workqueue import RetryError

log = structlog.get_logger(__name__)

STALE_S = 0.5
"""Planned again after this when the object had changed: the watch brings its new version."""
SETTLING_ROUNDS = 3
"""So many rounds in a row whose applies change children leave the status to the next one."""

STATUS_REMEDY = (
    "no status can be written: where a field is not declared the CRDs are older than the operator, "
    "apply those of its release (helm upgrade, or kubectl apply --server-side -f crds/)"
)
RIGHT_REMEDY = (
    "no status can be written: where the operator's account lacks the right, give it back its "
    "roles (helm upgrade)"
)
STATUS_REFUSED, FINALIZER_KEPT = "StatusRefused", "FinalizerKept"
DELETION_REFUSED = "DeletionRefused"
TOLD_ONCE = (STATUS_REFUSED, FINALIZER_KEPT, DELETION_REFUSED)
KEPT_REMEDY = (
    f"the finalizer {FINALIZER} cannot be taken off: give the operator's account back its roles "
    "(helm upgrade), or take it off by hand"
)
DELETION_REMEDY = (
    "ttlSecondsAfterFinished is over and the object cannot be deleted: where the operator's "
    "account lacks the right, give it back its roles (helm upgrade), or delete it by hand"
)


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
        children: Children,
        writer: Writer,
        requests: Requests,
        reports: ReportBook,
        gate: StatusGate,
    ) -> None:
        self._children = children
        self._writer = writer
        self._requests = requests
        self._reports = reports
        self._gate = gate
        self._changing: dict[ObjectKey, int] = {}  # rounds in a row, of those that wait
        self._told: set[tuple[ObjectKey, str]] = set()  # Events of what no condition can tell

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
                await self._release_alone(key, owner)
            return None
        except ClusterError as error:
            raise RetryError(str(error)) from error
        return times.next_s

    async def _steps(self, key: ObjectKey, owner: Manifest, plan: Plan, times: _Times) -> None:
        if plan.finalizer is True and not await self._hold(key, owner, plan, times):
            return  # nothing that could run is made without it
        done = await self._children.bring(key, owner, plan)
        times.within(done.next_s)
        if done.news:
            await self._tell_of_own_end(key, owner, plan)
        settling = self._settles(key, changed=done.changed)
        if done.news or settling:
            return  # the next plan knows it: this one's status would say otherwise
        if plan.finalizer is True and await self._submit(key, plan, times):
            return  # its answer is in the next plan: one status tells of both
        refused = await self._try_status(key, owner, plan, times)
        for request in plan.requests:
            times.within(await self._requests.ask(key, request))
        if refused is not None:
            raise refused  # what was asked goes on; nothing ends before its end could be written
        if plan.finalizer is False:
            await self._release(key, owner)

    async def _hold(self, key: ObjectKey, owner: Manifest, plan: Plan, times: _Times) -> bool:
        """Sets the finalizer; whether what the plan asks for can follow.

        Not when the object is gone: its own event follows. One that may not be set is told of in
        the status, and tried again after a while.

        Raises:
            NamespaceTerminatingError: nothing can be made there any more.
            ClusterError: the API server's answer.
        """
        uid = str(owner["metadata"]["uid"])
        place = finalizer_place(key, uid)
        held_s = self._reports.held_s(place, wish=uid)
        if held_s == 0:
            try:
                there = await self._writer.set_finalizer(owner, wanted=True)
            except NamespaceTerminatingError:
                raise
            except ForbiddenError as error:
                refusal = Refusal(
                    status_code=error.status or 0, code=error.reason, message=str(error)
                )
                held_s = ASK_AGAIN_S
                if self._reports.refuse(place, refusal, wish=uid, hold_s=held_s):
                    times.within(0.0)  # the next plan tells of it
                    return False
            else:
                if not self._reports.accept(place):
                    return there
                times.within(0.0)  # this plan's status would tell of it still
                return False
        times.within(held_s)
        refused = await self._try_status(key, owner, plan, times)
        if refused is not None:
            raise refused
        return False

    async def _submit(self, key: ObjectKey, plan: Plan, times: _Times) -> bool:
        """Asks for a batch before anything is said of it; whether the control plane has it now.

        Once a BatchJob: the finalizer is set then, and the next plan finds what was heard.
        """
        submissions = [item for item in plan.requests if isinstance(item, PutBatchJob)]
        for request in submissions:
            times.within(await self._requests.ask(key, request))
        return any(self._reports.job(request.uid) is not None for request in submissions)

    async def _release(self, key: ObjectKey, owner: Manifest) -> None:
        """Takes the finalizer off.

        Raises:
            ForbiddenError: it may not; an Event tells why the object stays, once.
            ClusterError: any other answer.
        """
        try:
            await self._writer.set_finalizer(owner, wanted=False)
        except ForbiddenError as error:
            await self._tell_once(key, owner, FINALIZER_KEPT, f"{KEPT_REMEDY}; {error}")
            raise

    async def _release_alone(self, key: ObjectKey, owner: Manifest) -> None:
        try:
            await self._release(key, owner)
        except ClusterError as error:
            raise RetryError(str(error)) from error

    async def _tell_once(self, key: ObjectKey, owner: Manifest, reason: str, message: str) -> None:
        """An Event of what no condition can tell; said before, it is not said again."""
        if (key, reason) not in self._told:
            self._told.add((key, reason))
            note = EventNote(type="Warning", reason=reason, message=message)
            await self._writer.send_event(owner, note)

    async def _tell_of_own_end(self, key: ObjectKey, owner: Manifest, plan: Plan) -> None:
        """An Event where the object itself is to go and may not: its conditions are final."""
        for ref in plan.removals:
            refusal = self._reports.refusal((*child_place(key), ref.kind, ref.name))
            if ref.uid == owner["metadata"]["uid"] and refusal is not None:
                told = f"{DELETION_REMEDY}; {refusal.message}"
                await self._tell_once(key, owner, DELETION_REFUSED, told)

    def _settles(self, key: ObjectKey, *, changed: bool) -> bool:
        """Whether the status is left to the next plan, which sees children as they are now.

        Where something changes them back each time there is no such plan: then it is written.
        """
        rounds = self._changing.pop(key, 0)
        if not changed or rounds >= SETTLING_ROUNDS:
            return False
        self._changing[key] = rounds + 1
        return True

    async def _try_status(
        self, key: ObjectKey, owner: Manifest, plan: Plan, times: _Times
    ) -> ClusterError | None:
        """Writes the status; what stopped it, a refusal told by an Event once of an object.

        No condition can tell of it: CRDs that are older than the operator, and a right that was
        taken away, refuse every status. Nor does what may pass, such as a webhook that is down,
        hold up what is asked of the control plane.

        Raises:
            NamespaceTerminatingError: nothing is written there any more.
        """
        try:
            if await self._write_status(owner, plan, times):
                self._told.discard((key, STATUS_REFUSED))
        except NamespaceTerminatingError:
            raise
        except (RefusedError, ForbiddenError) as error:
            remedy = RIGHT_REMEDY if isinstance(error, ForbiddenError) else STATUS_REMEDY
            await self._tell_once(key, owner, STATUS_REFUSED, f"{remedy}; {error}")
            return error
        except ClusterError as error:
            return error
        return None

    async def _write_status(self, owner: Manifest, plan: Plan, times: _Times) -> bool:
        """Writes the status when it may be written now; Events follow it, so each is said once."""
        if plan.status is not None:
            wait_s = self._gate.wait_s(str(owner["metadata"]["uid"]))
            if wait_s > 0:
                times.within(wait_s)
                return False
            written = await self._writer.write_status(owner, plan.status)
            if written is None:
                times.within(STALE_S)
                return False
            # What comes next may depend on what has been written. Nothing has where all that
            # differs is somebody else's, such as a condition of theirs: that stays so.
            if owner["kind"] == BATCH_JOB.kind and _version(written) != _version(owner):
                times.within(0.0)
        for note in plan.events:
            await self._writer.send_event(owner, note)
        return plan.status is not None

    def forget(self, key: ObjectKey) -> None:
        """The object is gone: what was applied for it or refused to it counts for no namesake."""
        self._changing.pop(key, None)
        self._told -= {(key, reason) for reason in TOLD_ONCE}
        self._reports.forget_refusals(child_place(key))
        self._reports.forget_refusals(job_place(key))
        if key.kind == LLM_SERVICE.kind:
            self._writer.forget_children(key.namespace, key.name)


def _version(item: Manifest) -> object:
    return item["metadata"].get("resourceVersion")
