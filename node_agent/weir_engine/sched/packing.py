"""The seat "packing": how requests of both classes get into one step. Protocol and result only.

None in the seat is the two phases of HyGen Algorithm 1: online first, offline in what is left.
"""

from dataclasses import dataclass
from typing import Protocol

from weir_engine.config import Policy
from weir_engine.latency.features import StepShape
from weir_engine.sched.account import StepLimit
from weir_engine.sched.draft import StepDraft


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """What a packing came to beside the draft that it filled."""

    online_shape: StepShape
    limit: StepLimit


class Packing(Protocol):
    """Fills a draft from the scheduler's state; nothing else changes."""

    def fill(self, draft: StepDraft, policy: Policy, now_s: float) -> Packed:
        """Put work, preemptions and restores of one step into ``draft``."""
        ...
