"""The guarded machine of batch states (design.md §8.6)."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from weir_controlplane.batches.states import (
    LIVE,
    TERMINAL,
    Event,
    IllegalTransitionError,
    State,
    Status,
    advance,
)

# As the surface draws it: what a client may see after what.
SEEN_NEXT = {
    Status.VALIDATING: {
        Status.FAILED, Status.IN_PROGRESS, Status.CANCELLING, Status.EXPIRED,
    },
    Status.IN_PROGRESS: {
        Status.FINALIZING, Status.CANCELLING, Status.EXPIRED, Status.FAILED,
    },
    Status.FINALIZING: {Status.COMPLETED, Status.FAILED},
    Status.CANCELLING: {Status.CANCELLED, Status.FAILED},
}  # fmt: skip


class BatchMachine(RuleBasedStateMachine):
    """Any events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(status=Status.VALIDATING)

    @rule(event=st.sampled_from(list(Event)))
    def happen(self, event: Event) -> None:
        before = self.state
        try:
            self.state = advance(before, event)
        except IllegalTransitionError:
            return
        assert before.status not in TERMINAL, "a terminal state was left"
        if self.state.status != before.status:
            assert self.state.status in SEEN_NEXT[before.status]
        if event is Event.LOST:
            assert self.state == State(status=Status.FAILED)
        elif before.closing_as is not None:
            end = self.state.status if self.state.status in TERMINAL else self.state.closing_as
            assert end == before.closing_as, "an end that was decided was changed"

    @invariant()
    def the_end_is_decided_exactly_while_winding_up(self) -> None:
        if self.state.status in TERMINAL:
            assert self.state.closing_as is None
        if self.state.status in {Status.FINALIZING, Status.CANCELLING}:
            assert self.state.closing_as is not None


TestBatchMachine = BatchMachine.TestCase


def test_every_status_is_live_or_terminal() -> None:
    assert set(LIVE) | set(TERMINAL) == set(Status)
    assert not set(LIVE) & set(TERMINAL)


@pytest.mark.parametrize("status", TERMINAL)
@pytest.mark.parametrize("event", list(Event))
def test_nothing_happens_to_a_batch_that_has_ended(status: Status, event: Event) -> None:
    with pytest.raises(IllegalTransitionError):
        advance(State(status=status), event)


def test_finalizing_never_expires_and_cannot_be_cancelled() -> None:
    """§8.6."""
    finalizing = State(status=Status.FINALIZING, closing_as=Status.COMPLETED)
    for event in (Event.WINDOW_ENDED, Event.CANCEL):
        with pytest.raises(IllegalTransitionError):
            advance(finalizing, event)


def test_cancelling_twice_changes_nothing() -> None:
    once = advance(State(status=Status.IN_PROGRESS), Event.CANCEL)
    assert advance(once, Event.CANCEL) == once
    assert advance(once, Event.WOUND_UP) == State(status=Status.CANCELLED)


def test_what_expires_while_validating_ends_as_expired() -> None:
    expiring = advance(State(status=Status.VALIDATING), Event.WINDOW_ENDED)
    assert advance(expiring, Event.CANCEL) == expiring
    assert advance(expiring, Event.WOUND_UP) == State(status=Status.EXPIRED)
