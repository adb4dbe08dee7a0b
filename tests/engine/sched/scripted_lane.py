"""A CPU lane that is whatever a test says: for tests of the scheduler only."""

from dataclasses import dataclass, field

from weir_engine.ids import RequestId


@dataclass
class ScriptedLane:
    """Implements ``CpuLaneView``."""

    ready: list[int]
    room_tokens: int = 10_000
    landing: set[RequestId] = field(default_factory=set)
    between_tokens: list[RequestId] = field(default_factory=list)
    next_s: float | None = None
