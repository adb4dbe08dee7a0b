"""HyGen's latency predictor: six features and a constant."""

from typing import ClassVar

from typing_extensions import override

from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models.linear import LinearModel


class HygenModel(LinearModel):
    """T = c + S_p + S_d + S_p² + S_d² + N_p + N_d, each with its coefficient.

    Source: HyGen §4.2, eq. 1. Deviations: S_d is the context of the decoding requests (as "decode
    tokens" it equals N_d and the fit loses a rank); a constant is added, for every step pays it;
    no coefficient is negative, so that more work never predicts less.
    """

    name: ClassVar[str] = "hygen"
    features_by_name: ClassVar[tuple[str, ...]] = (
        "constant",
        "prefill_tokens",
        "decode_context",
        "prefill_tokens_squared",
        "decode_context_squared",
        "prefill_requests",
        "decode_requests",
    )
    defaults: ClassVar[tuple[float, ...]] = (7.5e-3, 4.5e-4, 1.4e-6, 6e-8, 1e-13, 2e-4, 6e-4)

    @override
    def features(self, shape: StepShape) -> tuple[float, ...]:
        prefill, context = float(shape.prefill_tokens), float(shape.decode_context)
        return (
            1.0,
            prefill,
            context,
            prefill * prefill,
            context * context,
            float(shape.prefill_requests),
            float(shape.decode_requests),
        )

    @override
    def predict(self, shape: StepShape) -> float:
        if shape.is_empty:
            return 0.0
        prefill, context = shape.prefill_tokens, shape.decode_context
        return (
            self._constant
            + prefill * (self._prefill + self._prefill_squared * prefill)
            + context * (self._context + self._context_squared * context)
            + self._prefills * shape.prefill_requests
            + self._decodes * shape.decode_requests
        )

    @override
    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        square = self._context_squared * (context_tokens + 2 * shape.decode_context)
        return self._decodes + context_tokens * (self._context + square)

    @override
    def _prefill_terms(self, shape: StepShape, computed_tokens: int) -> tuple[float, float, float]:
        square = self._prefill_squared
        return self._prefills, self._prefill + 2 * square * shape.prefill_tokens, square

    @override
    def _unpack(self) -> None:
        (
            self._constant,
            self._prefill,
            self._context,
            self._prefill_squared,
            self._context_squared,
            self._prefills,
            self._decodes,
        ) = self._values
