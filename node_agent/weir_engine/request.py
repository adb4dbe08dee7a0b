"""A request as the scheduler sees it, and the states it goes through.

Progress is one number, as in vLLM: computed tokens catch up with known tokens. A request has
``known_tokens`` (prompt + output so far); a step computes some of those not yet computed, and when
none is left the step yields one more. No decision belongs here.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from weir_engine.errors import StateError
from weir_engine.ids import BlockHash, RequestClass, RequestId


class RequestState(IntEnum):
    """Where a request stands. Every request ends exactly once, in ``FINISHED``."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3


_ALLOWED = {
    RequestState.WAITING: (RequestState.RUNNING, RequestState.FINISHED),
    RequestState.RUNNING: (RequestState.PREEMPTED, RequestState.FINISHED),
    RequestState.PREEMPTED: (RequestState.RUNNING, RequestState.FINISHED),
    RequestState.FINISHED: (),
}


@dataclass(kw_only=True, slots=True, eq=False)
class Request:
    """One online or offline request.

    ``arrival_s``, ``first_token_s`` and ``last_token_s`` are on the scheduler's clock.
    ``block_hashes`` are the chained hashes of the full blocks of the known tokens; the owner of the
    tokens appends to the list as they grow. ``max_output_tokens`` bounds the output,
    ``expected_output_tokens`` is a guess or None. ``deadline_s`` is when a batch's window closes.
    ``group`` hints at a shared prefix; ``solo`` keeps every other offline request out.
    ``is_online`` says that a user waits for it.
    """

    id: RequestId
    klass: RequestClass
    arrival_s: float
    prompt_tokens: int
    max_output_tokens: int
    block_hashes: list[BlockHash] = field(default_factory=list)
    tenant: str = ""
    group: str | None = None
    deadline_s: float | None = None
    expected_output_tokens: int | None = None
    solo: bool = False

    state: RequestState = RequestState.WAITING
    computed_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    delivered_tokens: int = 0  # output tokens that came out; in flight ones are left out
    preemptions: int = 0
    hit_tokens: int = 0  # prefix hit of the first admission; recomputation is never counted
    served_tokens: int = 0  # most tokens it ever had computed or cached: what it was served
    offline_delay_s: float = 0.0  # part of its wait for the first token that offline work caused
    is_online: bool = field(init=False)  # an attribute, not a property: read for all every step

    def __post_init__(self) -> None:
        self.is_online = self.klass is RequestClass.ONLINE

    @property
    def known_tokens(self) -> int:
        """Prompt and output tokens so far; in flight ones included."""
        return self.prompt_tokens + self.output_tokens

    @property
    def remaining_tokens(self) -> int:
        """Known tokens not computed yet: 1 while decoding, more while prefilling."""
        return self.prompt_tokens + self.output_tokens - self.computed_tokens

    @property
    def is_decoding(self) -> bool:
        """True when the next step yields a token by computing a single one after the prompt."""
        output = self.output_tokens
        return output > 0 and self.prompt_tokens + output - self.computed_tokens == 1

    def move(self, state: RequestState) -> None:
        """Change the state.

        Raises:
            StateError: the machine has no such transition.
        """
        if state not in _ALLOWED[self.state]:
            raise StateError(f"request {self.id}: {self.state.name} cannot become {state.name}")
        self.state = state
