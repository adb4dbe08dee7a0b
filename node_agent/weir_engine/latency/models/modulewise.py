"""OmniServe's latency model: a step is the sum of its modules, each from its own table."""

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
from typing_extensions import override

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import Array, fit_relative
from weir_engine.latency.models.fitted import FittedModel, saved_parts
from weir_engine.latency.models.module_tables import (
    STRAIGHT_TABLES,
    ModuleProbe,
    ModuleTables,
)
from weir_engine.latency.quantile import ResidualQuantiles

_SMALLEST_FIXED_S = 1e-6


class ModulewiseModel(FittedModel):
    """T = c + dense(tokens) + prefill attention + decode attention + β tokens + γ requests.

    ``tables`` are measured module by module (``profiled``). The coefficients, 1 for each table at
    first, are fitted to whole steps: c takes the host, β what else grows with tokens, γ what a
    sequence costs at the end of a step. Decodes beside a prefill have a coefficient of their own.
    As measured, a step of more tokens can be some percent shorter than one of fewer; predictions
    follow that.

    Source: OmniServe §3.3.1, eq. 2 and 3, Alg. 1. Deviations: see ``ModuleTables`` and
    ``spike_search``; the online fit is ours.
    """

    name: ClassVar[str] = "modulewise"
    features_by_name: ClassVar[tuple[str, ...]] = (
        "constant",
        "dense",
        "prefill_attention",
        "decode_attention",
        "decode_beside_prefill",
        "tokens",
        "requests",
    )
    defaults: ClassVar[tuple[float, ...]] = (7.5e-3, 1.0, 1.0, 1.0, 1.0, 0.0, 2e-4)
    columns: ClassVar[int] = 7

    def __init__(
        self,
        coefficients: Mapping[str, float] | None = None,
        quantiles: ResidualQuantiles | None = None,
        tables: ModuleTables = STRAIGHT_TABLES,
    ) -> None:
        self._tables = tables
        super().__init__(coefficients, quantiles)

    @property
    def tables(self) -> ModuleTables:
        """What the modules take."""
        return self._tables

    @classmethod
    def profiled(
        cls,
        probe: ModuleProbe,
        *,
        max_batched_tokens: int,
        max_seqs: int,
        max_model_len_tokens: int,
    ) -> Self:
        """A model with measured tables; whole steps (``update``, ``refit``) then fit the rest."""
        tables = ModuleTables.measure(
            probe,
            max_batched_tokens=max_batched_tokens,
            max_seqs=max_seqs,
            max_model_len_tokens=max_model_len_tokens,
        )
        start = (1e-3, 1.0, 1.0, 1.0, 1.0, 0.0, 1e-5)
        return cls(dict(zip(cls.features_by_name, start, strict=True)), tables=tables)

    @property
    @override
    def fixed_s(self) -> float:
        return self._values[0] + self._values[1] * self._tables.dense[0]

    @override
    def features(self, shape: StepShape) -> tuple[float, ...]:
        tables = self._tables
        prefill_s = decode_s = beside_s = 0.0
        if shape.prefill_requests and shape.prefill_tokens:
            prefill_s = tables.prefill_s(
                shape.prefill_tokens, shape.prefill_history, shape.prefill_requests
            )
        if shape.decode_requests and prefill_s:
            beside_s = tables.decode_beside_s(
                shape.decode_requests,
                shape.decode_context,
                shape.prefill_tokens,
                shape.decode_longest,
            )
        elif shape.decode_requests:
            decode_s = tables.decode_s(
                shape.decode_requests, shape.decode_context, shape.decode_longest
            )
        tokens = shape.prefill_tokens + shape.decode_requests
        requests = shape.prefill_requests + shape.decode_requests
        dense_s = tables.dense_s(tokens)
        return 1.0, dense_s, prefill_s, decode_s, beside_s, float(tokens), float(requests)

    @override
    def predict(self, shape: StepShape) -> float:
        if shape.is_empty:
            return 0.0
        constant, dense, prefill, decode, beside, token, request = self._values
        _, dense_s, prefill_s, decode_s, beside_s, tokens, requests = self.features(shape)
        return (
            constant
            + dense * dense_s
            + prefill * prefill_s
            + decode * decode_s
            + beside * beside_s
            + token * tokens
            + request * requests
        )

    def dense_s(self, tokens: int) -> float:
        """Seconds of the dense modules of all layers for that many tokens, transfers included."""
        return self._values[1] * self._tables.dense_s(tokens) + self._values[5] * tokens

    @override
    def marginal(self, shape: StepShape, extra: StepShape) -> float:
        return max(super().marginal(shape, extra), 0.0)

    @override
    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        with_it = self.predict(shape.with_decode(context_tokens))
        return max(with_it - (self.fixed_s if shape.is_empty else self.predict(shape)), 0.0)

    @override
    def max_prefill_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, q: float, upper: int
    ) -> int:
        """By bisection (OmniServe §3.3.4): what it returns fits, and about twice as much does not.

        Where a larger number of tokens takes less time than a smaller one, it may miss the largest.
        """
        if upper < 1 or limit_s <= 0:
            return 0
        room_s = self._quantiles.within(limit_s, q)

        def fits(tokens: int) -> bool:
            return self.predict(shape.with_prefill(tokens, computed_tokens)) <= room_s

        if fits(upper):
            return upper
        low, high = 0, upper
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    @override
    def state(self) -> dict[str, object]:
        return {**super().state(), "tables": self._tables.state()}

    @classmethod
    @override
    def from_state(cls, state: Mapping[str, object]) -> Self:
        coefficients, quantiles = saved_parts(state, cls.name)
        tables = state.get("tables")
        if not isinstance(tables, Mapping):
            raise ConfigError("latency profile needs 'tables' as a mapping: profile again")
        return cls(coefficients, quantiles, ModuleTables.of(tables))

    @override
    def _fit(self, rows: Array, seconds: Array, weights: Array) -> Array:
        return fit_relative(rows, seconds, weights, self._prior, last=np.array(self._values))

    @override
    def _load(self, values: list[float]) -> None:
        values[0] = max(values[0], _SMALLEST_FIXED_S)
        self._values = tuple(values)
