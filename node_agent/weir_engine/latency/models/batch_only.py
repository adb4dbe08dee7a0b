"""The latency model of a pod without online traffic: no step is too long, so nothing is learnt.

A step ends where its tokens do. Choose it only where no SLO holds.
"""

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape

_SECONDS = 1e-9  # a plan with work must take time; how much is nobody's business here


class BatchOnlyModel:
    """Every step is as short as any other; optionally its tokens come in multiples.

    ``multiple`` 1 or more: a prompt is chunked so that the step's tokens are a multiple of it. A
    prompt that does not reach the next one waits, unless the step has no other prefill: then it is
    computed, and the batch stays short of it.

    Raises:
        ConfigError: a multiple below 1.

    Source: BlendServe §4, "Batch scheduler": batch sizes in multiples of 128.
    """

    def __init__(self, *, multiple: int = 1) -> None:
        if multiple < 1:
            raise ConfigError(f"multiple is {multiple}: give 1 or more tokens")
        self._multiple = multiple

    @property
    def fixed_s(self) -> float:
        """Next to nothing."""
        return _SECONDS

    @property
    def graph_tokens(self) -> int:
        """No bound."""
        return 0

    def beyond_graphs_s(self, tokens: int) -> float:  # noqa: ARG002
        """Nothing."""
        return 0.0

    def mixed_s(self, decodes: StepShape) -> float:  # noqa: ARG002
        """Nothing."""
        return 0.0

    @property
    def observed_steps(self) -> int:
        """It learns from none."""
        return 0

    def predict(self, shape: StepShape) -> float:
        """The same for every step with work in it."""
        return 0.0 if shape.is_empty else _SECONDS

    def predict_high(self, shape: StepShape, q: float) -> float:  # noqa: ARG002
        """As ``predict``."""
        return self.predict(shape)

    def high(self, predicted_s: float, q: float) -> float:  # noqa: ARG002
        """The median itself."""
        return predicted_s

    def within(self, limit_s: float, q: float) -> float:  # noqa: ARG002
        """The limit itself."""
        return limit_s

    def marginal(self, shape: StepShape, extra: StepShape) -> float:  # noqa: ARG002
        """Nothing: no work makes a step longer."""
        return 0.0

    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:  # noqa: ARG002
        """Nothing."""
        return 0.0

    def max_prefill_tokens(
        self,
        shape: StepShape,
        computed_tokens: int,  # noqa: ARG002
        limit_s: float,
        q: float,  # noqa: ARG002
        upper: int,
    ) -> int:
        """All of ``upper``, or what ends the step at a multiple."""
        if limit_s <= 0:
            return 0
        total = shape.tokens + upper
        rounded = total - total % self._multiple - shape.tokens
        if rounded <= 0 and not shape.prefill_tokens:
            return upper
        return max(rounded, 0)

    def update(self, shape: StepShape, seconds: float) -> None:
        """Learns nothing."""

    def refit(self) -> None:
        """Nothing to fit."""

    def state(self) -> dict[str, object]:
        """Its name and setting."""
        return {"model": "batch-only", "multiple": self._multiple}
