"""What the agent asks of an engine: run an offline line, take a policy, report.

``vllm_bridge`` implements it on vLLM, the tests with a fake; nothing here knows either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class EngineStartError(Exception):
    """The engine's process ended before it was ready; the message says why, and what to look at."""


class EngineGoneError(Exception):
    """The engine died, was stopped or told to abort while it held the request: no result."""


class EngineBusyError(Exception):
    """The engine refused a request for lack of room; the same request may succeed later."""


class PolicyRefusedError(Exception):
    """The scheduler did not take the policy; the message says which field is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A model as batches name it."""

    name: str
    revision: str
    max_model_len_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OfflineLine:
    """One line of a batch, ready to run: ``body`` has passed the allow-list.

    ``deadline_s`` is on the machine's monotonic clock. ``group`` names lines with a common prefix.
    A choice ends after ``most_tokens``: what it would be by then is not kept, however it goes on.
    """

    chunk_id: str
    attempt: int
    line: int
    request_id: str
    url: str
    body: Mapping[str, Any]
    tenant: str
    group: str | None = None
    deadline_s: float | None = None
    expected_output_tokens: int | None = None
    most_tokens: int | None = None
    solo: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LineOutcome:
    """What the engine's own HTTP application answered to the line.

    ``cut``: a choice ended at the line's ``most_tokens``, so it is not the answer that was asked.
    """

    status_code: int
    body: Mapping[str, Any]
    cached_tokens: int = 0
    cut: bool = False


class Engine(Protocol):
    """An engine with an OpenAI application that runs offline lines beside it."""

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The models it serves, the first being the default."""
        ...

    @property
    def identity(self) -> str:
        """Names what steps cost on: version, arguments and device."""
        ...

    @property
    def dead(self) -> bool:
        """True once the engine cannot compute any more; it never recovers."""
        ...

    async def execute(self, line: OfflineLine) -> LineOutcome:
        """The answer to the line; cancelling takes the line out of the engine.

        Raises:
            EngineGoneError: the engine died meanwhile.
            EngineBusyError: no room now.
        """
        ...

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Hands a ``PolicyMessage`` of the bridge to the scheduler.

        Raises:
            TimeoutError: the engine did not answer.
            EngineGoneError: the engine is dead.
            PolicyRefusedError: the policy is not valid.
        """
        ...

    async def latency_profile(self) -> Mapping[str, Any]:
        """The latency model that its scheduler learned, as plain data; empty of none.

        Raises:
            TimeoutError: the engine did not answer.
            EngineGoneError: the engine is dead.
        """
        ...

    async def telemetry(self) -> Mapping[str, Any]:
        """Aggregates of the scheduler, as the bridge reports them; waits until the engine answers.

        An engine answers between two steps only, and a step may take seconds.

        Raises:
            EngineGoneError: the engine is dead.
        """
        ...
