"""What the scheduler asks of a latency model. No arithmetic here."""

from typing import Protocol

from weir_engine.latency.features import EMPTY_SHAPE, StepShape


class LatencyModel(Protocol):
    """Seconds that a step of a given shape takes, monotone in every count of the shape."""

    @property
    def fixed_s(self) -> float:
        """Seconds that a step costs before its first token (c0)."""
        ...

    @property
    def graph_tokens(self) -> int:
        """Tokens of the largest step that the engine has a CUDA graph for; 0: no such bound."""
        ...

    def beyond_graphs_s(self, tokens: int) -> float:
        """Seconds that a step of so many tokens costs for being larger than that."""
        ...

    def mixed_s(self, decodes: StepShape) -> float:
        """Seconds that these decodes take longer for a prompt beside them; 0 while unsure."""
        ...

    @property
    def observed_steps(self) -> int:
        """Measured steps learnt from; 0 means that only the profile or the defaults speak."""
        ...

    def predict(self, shape: StepShape) -> float:
        """Median seconds of the step; 0 for an empty one."""
        ...

    def predict_high(self, shape: StepShape, q: float) -> float:
        """Seconds that a fraction ``q`` of such steps stay within, by the measured residuals."""
        ...

    def high(self, predicted_s: float, q: float) -> float:
        """``predict_high`` for a median that the caller already has."""
        ...

    def within(self, limit_s: float, q: float) -> float:
        """The largest median that stays within ``limit_s`` at ``q``: the inverse of ``high``."""
        ...

    def marginal(self, shape: StepShape, extra: StepShape) -> float:
        """Median seconds that ``extra`` adds to a step that already does ``shape``.

        ``fixed_s`` is in it only when ``shape`` is empty.
        """
        ...

    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        """Median seconds that one more decode adds to ``shape``, ``fixed_s`` left out."""
        ...

    def max_prefill_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, q: float, upper: int
    ) -> int:
        """The most new tokens, 0 to ``upper``, that keep the step within ``limit_s`` at ``q``.

        They belong to one more prefill, on top of ``computed_tokens`` of its own.
        """
        ...

    def update(self, shape: StepShape, seconds: float) -> None:
        """Learn from a measured step; durations that are not positive and finite are not used."""
        ...

    def refit(self) -> None:
        """Fit to the kept steps now instead of in a few steps; about a millisecond."""
        ...

    def state(self) -> dict[str, object]:
        """Plain data that ``create(name, state)`` makes an equal model from."""
        ...
