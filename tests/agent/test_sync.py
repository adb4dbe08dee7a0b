"""When the agent syncs again, whatever the control plane asks for."""

from __future__ import annotations

import pytest

from weir_agent.sync import LEAST_NEXT_SYNC_S, MOST_NEXT_SYNC_S, bounded_pause_s


@pytest.mark.parametrize(
    ("asked_s", "pause_s"),
    [(0.0, LEAST_NEXT_SYNC_S), (1e-300, LEAST_NEXT_SYNC_S), (1.05, 1.05), (1e9, MOST_NEXT_SYNC_S)],
)
def test_the_next_sync_comes_neither_at_once_nor_never(asked_s: float, pause_s: float) -> None:
    """A reply that asked for 0 s made the agent sync without pause."""
    assert 0 < LEAST_NEXT_SYNC_S < MOST_NEXT_SYNC_S
    assert bounded_pause_s(asked_s) == pause_s
