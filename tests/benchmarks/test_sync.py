"""The syncs' benchmark: a refusal is no fast answer, and what was not taken is not committed."""

import json
import time
from typing import cast

from benchmarks.sync import claims_of
from benchmarks.sync_agents import Agent, Connection, Measured


class Refusing:
    """A control plane that answers every second sync of its agents with 503, at once."""

    def __init__(self) -> None:
        self._asked = 0

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:  # noqa: ARG002
        self._asked += 1
        if self._asked % 2:
            return 503, json.dumps({"error": {"code": "overloaded"}}).encode()
        reply = {"incarnation": 1, "lost": [], "adopted": [], "chunks": [], "next_sync_s": 1.0}
        return 200, json.dumps(reply).encode()

    def close(self) -> None:
        """Nothing is open."""


async def test_a_refusal_counts_as_refused_and_not_as_an_answer() -> None:
    measured = Measured(from_s=0.0)
    agent = Agent(1, cast(Connection, Refusing()), measured)
    for _ in range(4):
        await agent._sync()
    assert measured.refused == {"503 overloaded": 2}
    assert len(measured.latencies_s) == 2
    assert max(measured.latencies_s) < time.monotonic()


def test_refused_syncs_miss_a_target_and_refused_commits_are_no_commits() -> None:
    measured = Measured(
        from_s=0.0,
        latencies_s=[0.01] * 60,
        refused={"503 overloaded": 5},
        commits={"accepted": 3, "commit 409": 7},
    )
    claims = {claim.id: claim for claim in claims_of(measured, 0.5, agents=1, seconds=60.0)}
    assert claims["sync/p99"].met is True
    assert "3 chunks committed" in claims["sync/p99"].what
    assert claims["sync/refused"].met is False
