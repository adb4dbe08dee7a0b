"""Refusals of the agent protocol, by their codes."""

from __future__ import annotations

from weir_controlplane.errors import ConflictError, InvalidRequestError


class StaleLeaseError(ConflictError):
    """The caller does not hold the chunk (any more)."""

    default_code = "stale_lease"

    def __init__(self, chunk_id: str) -> None:
        super().__init__(f"attempt, nonce: not the current lease of {chunk_id}; drop the chunk")


class StaleIncarnationError(ConflictError):
    """A newer process has the agent's id."""

    default_code = "stale_incarnation"

    def __init__(self, agent_id: str, newest: int) -> None:
        super().__init__(
            f"incarnation: agent {agent_id} has a newer process ({newest}); stop offline work "
            "and start over with null",
            param="incarnation",
        )


class StaleSequenceError(ConflictError):
    """A later sync of the same process was seen."""

    default_code = "stale_sequence"

    def __init__(self, seen: int) -> None:
        super().__init__(f"sequence: {seen} was seen already; send a higher one", param="sequence")


class LineMismatchError(InvalidRequestError):
    """The lines are not those of the chunk or of the upload."""

    default_code = "line_mismatch"
