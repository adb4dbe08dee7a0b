"""Applies and deletes an object's children; one that is refused, or fails, stops no other.

But for the Deployment, which waits for a ServiceAccount of its own.
What the API server says of it is kept in the reports, from where the next plan tells it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial

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
from weir_operator.planning.kinds import DEPLOYMENT, SERVICE_ACCOUNT
from weir_operator.planning.observed import Refusal
from weir_operator.planning.types import ChildRef, Manifest, ObjectKey, Plan
from weir_operator.reconcile.observe import child_place

log = structlog.get_logger(__name__)

TOLD_AFTER_S = 10.0
"""A child that fails for so long, for reasons that pass by themselves, is told of in the status."""


CONTESTED = (
    "something changes it back each time it is put right, which is done once a minute from now on: "
    "find who it is (kubectl get --output=yaml --show-managed-fields), such as a second operator"
)


class ContestedError(ClusterError):
    """A child was changed back so often that each further apply would only restart its pods."""

    permanent = True


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round made of the children.

    ``news``: one is refused since now, or is so no longer. ``changed``: an apply changed one.
    ``next_s``: after how many seconds to plan again, None: only after a change.
    """

    news: bool
    changed: bool
    next_s: float | None


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A child to apply, or to delete: one of ``child`` and ``kept_uid`` says which.

    ``act`` says whether a child was changed by it.
    """

    kind: str
    name: str
    wish: Hashable
    act: Callable[[], Awaitable[bool]]
    child: Manifest | None = None
    kept_uid: str | None = None


class Children:
    """Brings children to what a plan says of them."""

    def __init__(self, writer: Writer, reports: ReportBook) -> None:
        self._writer = writer
        self._reports = reports

    async def bring(self, key: ObjectKey, owner: Manifest, plan: Plan) -> Round:
        """Deletes children that are to go, then applies every other that may be.

        Raises:
            NamespaceTerminatingError: nothing can be made there any more.
            ClusterError: the first failure that may pass; the queue repeats it.
        """
        news, changed = False, False
        waits_s: list[float] = []
        failed: ClusterError | None = None
        for step in self._steps(owner, plan):
            if self._lacks_account(owner, step):
                continue  # what came of the account says why, and when to try again
            place = (*child_place(key), step.kind, step.name)
            held_s = self._reports.held_s(place, wish=step.wish)
            if held_s > 0:
                waits_s.append(held_s)
                continue
            try:
                changed |= await self._act(place, step)
                news |= self._reports.accept(place)
            except NamespaceTerminatingError:
                raise
            except ClusterError as error:
                if not _says_no(error) and self._reports.failing_s(place) < TOLD_AFTER_S:
                    failed = failed or error
                    continue
                hold_s = ASK_AGAIN_S if _says_no(error) else UNANSWERED_S
                waits_s.append(hold_s)
                news |= self._refused(key, step, error, hold_s=hold_s)
        if failed is not None:
            raise failed
        if news or changed:
            waits_s.append(0.0)  # our own writes enqueue nothing: look at their result
        return Round(news=news, changed=changed, next_s=min(waits_s, default=None))

    def _lacks_account(self, owner: Manifest, step: _Step) -> bool:
        """Whether a step would have pods run without an account that is known to be the owner's.

        One of somebody else may have that name and no label of ours, so that no plan knows of it.
        Pods would run with its rights: while it is refused, while that refusal is held, and where
        nobody could say whose it is. Asked as the step's turn comes, which is after the account's.
        """
        makes_pods = step.child is not None and step.kind == DEPLOYMENT.kind
        return makes_pods and not self._writer.has_child(owner, SERVICE_ACCOUNT)

    async def _act(self, place: Place, step: _Step) -> bool:
        """Takes a step; whether it changed a child.

        Raises:
            ContestedError: it did, and something undoes it each time.
            ClusterError: the API server's answer.
        """
        changed = await step.act()
        if changed and self._reports.changed_back(place, wish=step.wish):
            raise ContestedError(CONTESTED, reason="Contested")
        return changed

    def _steps(self, owner: Manifest, plan: Plan) -> Iterator[_Step]:
        # Removals first: KEDA refuses to scale what another autoscaler still does.
        for ref in plan.removals:
            yield _Step(
                kind=ref.kind,
                name=ref.name,
                wish=ref,
                act=partial(self._remove, ref),
                kept_uid=ref.uid,
            )
        for child in plan.children:
            yield _Step(
                kind=str(child["kind"]),
                name=str(child["metadata"]["name"]),
                wish=digest(child),
                act=partial(self._writer.apply_child, owner, child),
                child=child,
            )

    async def _remove(self, ref: ChildRef) -> bool:
        await self._writer.remove(ref)
        return False  # no status tells of what is not asked for any more

    def _refused(self, key: ObjectKey, step: _Step, error: ClusterError, *, hold_s: float) -> bool:
        """Keeps what the API server says of a child; whether that is news."""
        refusal = Refusal(
            status_code=error.status or HTTP_CONFLICT,
            code=error.reason or "Refused",
            message=str(error),
            wish=step.child,
            kept_uid=step.kept_uid,
        )
        log.warning(
            "child.refused" if step.kept_uid is None else "child.kept",
            namespace=key.namespace,
            child=(step.kind, step.name),
        )
        place = (*child_place(key), step.kind, step.name)
        return self._reports.refuse(place, refusal, wish=step.wish, hold_s=hold_s)


def _says_no(error: ClusterError) -> bool:
    """Whether a child's failure is said in a condition at once, not retried with backoff first."""
    return error.permanent or isinstance(error, ForbiddenError | NotFoundError)
