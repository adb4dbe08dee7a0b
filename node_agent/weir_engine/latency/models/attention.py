"""Weir's own linear model: the attention of a prefill over its history is a feature."""

from typing import ClassVar, Final

from typing_extensions import override

from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models.linear import LinearModel

_COLUMNS: Final = 7  # a subclass may have more behind them
# A fit of fewer steps cannot tell what decodes cost beside prompts: on a CPU where that was nothing
# it came out at five times what they cost alone, and hid in other prices until then.
_SURE_STEPS: Final = 256


class AttentionModel(LinearModel):
    """T = c + S_p + history pairs + N_p + N_d + S_d, each with its coefficient.

    Unlike HyGen's squares, the pairs n * (p + n / 2) tell a chunk late in a long prompt from an
    early one, and costs of requests add up. Beside a prompt S_d counts once more, with a price of
    its own: many attention kernels split the contexts of decodes only where no prompt is among them
    (decision 41).
    """

    name: ClassVar[str] = "attention"
    features_by_name: ClassVar[tuple[str, ...]] = (
        "constant",
        "prefill_tokens",
        "prefill_history",
        "prefill_requests",
        "decode_requests",
        "decode_context",
        "mixed_context",
    )
    defaults: ClassVar[tuple[float, ...]] = (7.5e-3, 4.5e-4, 1.3e-7, 2e-4, 6e-4, 1.4e-6, 0.0)

    @override
    def features(self, shape: StepShape) -> tuple[float, ...]:
        return (
            1.0,
            float(shape.prefill_tokens),
            float(shape.prefill_history),
            float(shape.prefill_requests),
            float(shape.decode_requests),
            float(shape.decode_context),
            float(shape.decode_context if shape.prefill_requests else 0),
        )

    @override
    def predict(self, shape: StepShape) -> float:
        tokens, history, prefills, decodes, context, _ = shape
        if not (prefills or decodes):
            return 0.0
        return (
            self._constant
            + self._prefill * tokens
            + self._history * history
            + self._prefills * prefills
            + self._decodes * decodes
            + (self._mixed_context if prefills else self._context) * context
        )

    @override
    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        each_s = self._mixed_context if shape.prefill_requests else self._context
        return self._decodes + each_s * context_tokens

    @override
    def mixed_s(self, decodes: StepShape) -> float:
        more_s = self._mixed_more
        if self.observed_steps < _SURE_STEPS:
            more_s = min(more_s, float(self._prior[_COLUMNS - 1]))
        return more_s * decodes.decode_context

    @override
    def _prefill_terms(self, shape: StepShape, computed_tokens: int) -> tuple[float, float, float]:
        half = self._history / 2
        fixed = self._prefills
        if not shape.prefill_requests:
            fixed += self._mixed_more * shape.decode_context
        return fixed, self._prefill + self._history * computed_tokens, half

    @override
    def _unpack(self) -> None:
        (
            self._constant,
            self._prefill,
            self._history,
            self._prefills,
            self._decodes,
            self._context,
            self._mixed_more,
        ) = self._values[:_COLUMNS]
        self._mixed_context = self._context + self._mixed_more
