"""Following a batch until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from weir_cli.api import Api
from weir_cli.console import err, lines_bar
from weir_cli.errors import UnavailableError
from weir_cli.models import Batch

POLL_S = 1.0
AWAY_POLL_S = 5.0
PLAIN_LINE_EVERY_S = 10.0
PATIENCE_S = 600.0


def follow(
    api: Api,
    batch: Batch,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Batch:
    """The batch in its final state; shows its progress while waiting."""
    shown: tuple[str, float] | None = None  # all but the counts, and when
    with lines_bar() as bar:
        task = bar.add_task(batch.id, total=None, detail=batch.status)
        while True:
            counts = batch.counts
            bar.update(
                task,
                completed=counts.completed + counts.failed,
                total=counts.total or None,
                detail=batch.state,
            )
            if not err.is_terminal and _is_news(batch, shown, clock()):
                err.print(summary(batch), markup=False)
                shown = (batch.state, clock())
            if batch.terminal:
                return batch
            sleep(POLL_S)
            batch = _again(api, batch, sleep=sleep, clock=clock)


def _again(
    api: Api, batch: Batch, *, sleep: Callable[[float], None], clock: Callable[[], float]
) -> Batch:
    """The batch as it is now; a control plane that is restarted meanwhile is waited for.

    Raises:
        UnavailableError: it did not answer for ten minutes.
    """
    since_s = clock()
    said = False
    while True:
        try:
            return api.batch(batch.id)
        except UnavailableError as error:
            if clock() - since_s > PATIENCE_S:
                raise
            if not said:
                err.print(f"{batch.id}: {error.message}; it is waited for", markup=False)
                said = True
            sleep(AWAY_POLL_S)


def _is_news(batch: Batch, shown: tuple[str, float] | None, now_s: float) -> bool:
    if shown is None:
        return True
    state, shown_at_s = shown
    return batch.state != state or now_s - shown_at_s >= PLAIN_LINE_EVERY_S


def summary(batch: Batch) -> str:
    """One line about a batch."""
    counts = batch.counts
    failed = f", {counts.failed} with errors" if counts.failed else ""
    return f"{batch.id}: {batch.state}, {counts.completed} of {counts.total} lines done{failed}"
