"""The states of a batch: one guarded machine, as pure functions (§8.6).

``closing_as`` remembers, while a batch is being wound up, how it will end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The states on the wire."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What can happen to a batch."""

    CONTENT_REFUSED = "content_refused"  # content errors found
    CONTENT_ACCEPTED = "content_accepted"  # chunks are ready to be leased
    LINES_DONE = "lines_done"  # every chunk is done
    CANCEL = "cancel"  # the tenant asks
    WINDOW_ENDED = "window_ended"  # the database's clock has passed expires_at
    WOUND_UP = "wound_up"  # output and error files are in place
    LOST = "lost"  # the file store has lost what its end needs


TERMINAL = (Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)
LIVE = tuple(status for status in Status if status not in TERMINAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where a batch is. ``closing_as`` is set from the moment its end is decided."""

    status: Status
    closing_as: Status | None = None


class IllegalTransitionError(Exception):
    """An event that cannot happen in this state; the caller decides what it means."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event} cannot happen to a batch that is {state.status}")
        self.state = state
        self.event = event


# While the end is undecided. What is not here cannot happen.
_MOVES = {
    (Status.VALIDATING, Event.CONTENT_REFUSED): State(status=Status.FAILED),
    (Status.VALIDATING, Event.CONTENT_ACCEPTED): State(status=Status.IN_PROGRESS),
    (Status.IN_PROGRESS, Event.LINES_DONE): State(
        status=Status.FINALIZING, closing_as=Status.COMPLETED
    ),
    **{
        (status, Event.CANCEL): State(status=Status.CANCELLING, closing_as=Status.CANCELLED)
        for status in (Status.VALIDATING, Status.IN_PROGRESS)
    },
    **{
        (status, Event.WINDOW_ENDED): State(status=status, closing_as=Status.EXPIRED)
        for status in (Status.VALIDATING, Status.IN_PROGRESS)
    },
}


def advance(state: State, event: Event) -> State:
    """The state after ``event``.

    A batch that expires stays ``in_progress`` or ``validating`` on the wire, closing as
    ``expired``, until its files are in place; one that is finalizing never expires. Cancelling
    what is being cancelled, or is expiring, changes nothing. One whose objects are lost fails from
    wherever it is.

    Raises:
        IllegalTransitionError: the event cannot happen in this state.
    """
    after: State | None
    if event is Event.LOST:
        after = None if state.status in TERMINAL else State(status=Status.FAILED)
    elif state.closing_as is None:
        after = _MOVES.get((state.status, event))
    elif event is Event.WOUND_UP:
        after = State(status=state.closing_as)
    elif event is Event.CANCEL and state.status is not Status.FINALIZING:
        after = state
    else:
        after = None
    if after is None:
        raise IllegalTransitionError(state, event)
    return after
