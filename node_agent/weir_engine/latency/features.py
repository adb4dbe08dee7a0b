"""The shape of a step, and the features that latency models are linear in.

Shapes are sums over the step's requests, so that adding a request is a few additions.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StepShape(NamedTuple):
    """What a step computes, summed over its requests. A tuple, because a plan makes dozens.

    ``prefill_tokens`` S_p: tokens computed by requests that prefill. ``prefill_history``: sum over
    them of n * (p + n / 2), n new tokens on p computed ones (attention work, in token pairs).
    ``prefill_requests`` N_p. ``decode_requests`` N_d. ``decode_context`` S_d: sum of the contexts
    of the requests that decode, in tokens (HyGen's "decode tokens" would equal N_d);
    ``decode_longest`` the longest of these contexts (Echo's max pooling).
    """

    prefill_tokens: int = 0
    prefill_history: float = 0.0
    prefill_requests: int = 0
    decode_requests: int = 0
    decode_context: int = 0
    decode_longest: int = 0

    @property
    def is_empty(self) -> bool:
        """True when the step computes nothing."""
        return self.prefill_requests == 0 and self.decode_requests == 0

    @property
    def tokens(self) -> int:
        """Tokens computed by the step."""
        return self.prefill_tokens + self.decode_requests

    @classmethod
    def of_decodes(cls, computed_tokens: Sequence[int]) -> "StepShape":
        """One more token of each of some requests, on top of so many computed ones."""
        count = len(computed_tokens)
        if not count:
            return EMPTY_SHAPE
        return cls(0, 0.0, 0, count, sum(computed_tokens) + count, max(computed_tokens) + 1)

    def with_prefill(self, new_tokens: int, computed_tokens: int) -> "StepShape":
        """The shape with one more prefill of ``new_tokens`` on top of ``computed_tokens``."""
        return StepShape(
            self.prefill_tokens + new_tokens,
            self.prefill_history + new_tokens * (computed_tokens + new_tokens / 2),
            self.prefill_requests + 1,
            self.decode_requests,
            self.decode_context,
            self.decode_longest,
        )

    def with_decode(self, context_tokens: int) -> "StepShape":
        """The shape with one more decode over ``context_tokens`` of context."""
        return StepShape(
            self.prefill_tokens,
            self.prefill_history,
            self.prefill_requests,
            self.decode_requests + 1,
            self.decode_context + context_tokens,
            max(self.decode_longest, context_tokens),
        )

    def plus(self, other: "StepShape") -> "StepShape":
        """The shape of both together; sums, so the order does not matter."""
        return StepShape(
            self.prefill_tokens + other.prefill_tokens,
            self.prefill_history + other.prefill_history,
            self.prefill_requests + other.prefill_requests,
            self.decode_requests + other.decode_requests,
            self.decode_context + other.decode_context,
            max(self.decode_longest, other.decode_longest),
        )


EMPTY_SHAPE = StepShape()
