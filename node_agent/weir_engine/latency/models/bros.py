"""BROS's cost model: a prefill part and a decode part, fitted apart and added."""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import Array, fit_relative
from weir_engine.latency.models.linear import LinearModel

_TERMS = 3  # of either part
_SMALLEST_S = 1e-6


class BrosModel(LinearModel):
    """T = P + D, each alpha0 * Ln + alpha1 * Ln * La + beta where it has requests.

    For prefills Ln = La = their new tokens; for decodes Ln is their number and La the sum of their
    contexts.

    Source: BROS §4.1, inference cost modeling. P is fitted to steps that only prefill and D to
    steps that only decode, as there; a step with both pays both betas. Deviation: no coefficient is
    negative. The swap time of §4.1 is no part of it: see ``latency.swap``.
    """

    name: ClassVar[str] = "bros"
    features_by_name: ClassVar[tuple[str, ...]] = (
        "prefill",
        "prefill_tokens",
        "prefill_tokens_squared",
        "decode",
        "decode_requests",
        "decode_requests_context",
    )
    defaults: ClassVar[tuple[float, ...]] = (7.5e-3, 4.5e-4, 6e-8, 7.5e-3, 6e-4, 1e-9)

    @property
    @override
    def fixed_s(self) -> float:
        return max(min(self._prefill, self._decode), _SMALLEST_S)

    @override
    def features(self, shape: StepShape) -> tuple[float, ...]:
        prefill, decodes = float(shape.prefill_tokens), float(shape.decode_requests)
        return (
            1.0 if shape.prefill_requests else 0.0,
            prefill,
            prefill * prefill,
            1.0 if decodes else 0.0,
            decodes,
            decodes * shape.decode_context,
        )

    @override
    def predict(self, shape: StepShape) -> float:
        total_s = 0.0
        if shape.prefill_requests:
            tokens = shape.prefill_tokens
            total_s += self._prefill + tokens * (self._token + self._token_squared * tokens)
        decodes = shape.decode_requests
        if decodes:
            each_s = self._each + self._each_context * shape.decode_context
            total_s += self._decode + decodes * each_s
        return total_s

    @override
    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        decodes = shape.decode_requests
        first = not decodes and not shape.is_empty
        context = shape.decode_context + (decodes + 1) * context_tokens
        return self._each + self._each_context * context + (self._decode if first else 0.0)

    @override
    def _prefill_terms(self, shape: StepShape, computed_tokens: int) -> tuple[float, float, float]:
        first = not shape.prefill_requests and not shape.is_empty
        square = self._token_squared
        linear = self._token + 2 * square * shape.prefill_tokens
        return self._prefill if first else 0.0, linear, square

    @override
    def _fit(self, rows: Array, seconds: Array, weights: Array) -> Array:
        values = np.array(self._values)
        prefills, decodes = rows[:, 0] > 0, rows[:, _TERMS] > 0
        for alone, part in (
            (prefills & ~decodes, slice(0, _TERMS)),
            (decodes & ~prefills, slice(_TERMS, None)),
        ):
            if alone.any():
                values[part] = fit_relative(
                    rows[alone, part], seconds[alone], weights[alone], self._prior[part]
                )
        return values

    @override
    def _unpack(self) -> None:
        (
            self._prefill,
            self._token,
            self._token_squared,
            self._decode,
            self._each,
            self._each_context,
        ) = self._values
