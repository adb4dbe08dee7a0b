"""What a simulation leaves behind: values only."""

from dataclasses import dataclass
from typing import NamedTuple

from weir_engine.ids import RequestId


class StepRecord(NamedTuple):
    """One step that ran. Offline ``served`` tokens count prefix hits of first admissions.

    ``online_s`` is what the online part alone would have taken beyond an empty step;
    ``offline_decoded_tokens`` are those computed one at a time, ``cpu_tokens`` of them by requests
    on the CPU lane. A tuple, because a day has millions.
    """

    started_s: float
    ended_s: float
    predicted_s: float
    online_tokens: int
    offline_computed_tokens: int
    offline_served_tokens: int
    online_s: float
    limit_reason: str
    offline_decoded_tokens: int = 0
    cpu_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRecord:
    """One online request and when its tokens came; ``tokens_s`` is empty if it got none."""

    id: RequestId
    arrival_s: float
    prompt_tokens: int
    hit_tokens: int
    tokens_s: tuple[float, ...]
    preemptions: int

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token.

        Raises:
            IndexError: it got none.
        """
        return self.tokens_s[0] - self.arrival_s

    @property
    def tbts_s(self) -> tuple[float, ...]:
        """Seconds between successive tokens."""
        return tuple(b - a for a, b in zip(self.tokens_s, self.tokens_s[1:], strict=False))

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between tokens; None with fewer than two."""
        if len(self.tokens_s) < 2:
            return None
        return (self.tokens_s[-1] - self.tokens_s[0]) / (len(self.tokens_s) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimResult:
    """All steps in order, all online requests in the order they ended, and the offline ends.

    ``unfinished`` are online requests that had arrived and not ended, with the tokens that they
    had.
    """

    steps: tuple[StepRecord, ...]
    online: tuple[RequestRecord, ...]
    offline_finished: int
    preemptions: int
    ended_s: float
    unfinished: tuple[RequestRecord, ...] = ()
