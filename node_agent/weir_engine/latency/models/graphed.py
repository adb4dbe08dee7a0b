"""The linear model of an engine whose small steps are CUDA graphs."""

from collections.abc import Mapping
from typing import ClassVar, Self

from typing_extensions import override

from weir_engine.errors import ConfigError
from weir_engine.latency.features import StepShape
from weir_engine.latency.models.attention import AttentionModel
from weir_engine.latency.models.fitted import saved_parts
from weir_engine.latency.quantile import ResidualQuantiles


class GraphedModel(AttentionModel):
    """``AttentionModel`` and what launching costs a step of more than ``graph_tokens`` tokens.

    Kernels of a step within graphs are launched as one; beyond, one by one, which takes a slow
    host longer than the GPU computes a step of hundreds of tokens.
    """

    name: ClassVar[str] = "attention-graphs"
    features_by_name: ClassVar[tuple[str, ...]] = (
        *AttentionModel.features_by_name,
        "beyond_graphs",
    )
    defaults: ClassVar[tuple[float, ...]] = (*AttentionModel.defaults, 0.0)

    def __init__(
        self,
        coefficients: Mapping[str, float] | None = None,
        quantiles: ResidualQuantiles | None = None,
        *,
        graph_tokens: int = 0,
    ) -> None:
        """``graph_tokens``: tokens of the largest step that is a graph (0: none is)."""
        self._graph_tokens = graph_tokens
        super().__init__(coefficients, quantiles)

    @property
    @override
    def graph_tokens(self) -> int:
        return self._graph_tokens

    @property
    @override
    def beyond_graphs_s(self) -> float:
        return self._beyond if self._graph_tokens else 0.0

    @override
    def features(self, shape: StepShape) -> tuple[float, ...]:
        return (*super().features(shape), float(self._is_beyond(shape)))

    @override
    def predict(self, shape: StepShape) -> float:
        seconds = super().predict(shape)
        return seconds + self._beyond if self._is_beyond(shape) else seconds

    @override
    def max_prefill_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, q: float, upper: int
    ) -> int:
        if not self._graph_tokens or self._is_beyond(shape):
            return self._fitting(shape, computed_tokens, limit_s, q, upper, 0.0)
        within = self._graph_tokens - shape.tokens
        tokens = self._fitting(shape, computed_tokens, limit_s, q, min(within, upper), 0.0)
        if tokens < within or upper <= within:
            return tokens
        return max(tokens, self._fitting(shape, computed_tokens, limit_s, q, upper, self._beyond))

    def _is_beyond(self, shape: StepShape) -> bool:
        return 0 < self._graph_tokens < shape.prefill_tokens + shape.decode_requests

    @override
    def state(self) -> dict[str, object]:
        """Plain data that ``from_state`` makes an equal model from, its kept steps left out."""
        return {**super().state(), "graph_tokens": self._graph_tokens}

    @classmethod
    @override
    def from_state(cls, state: Mapping[str, object]) -> Self:
        """The model that ``state`` was taken from.

        Raises:
            ConfigError: another model's state, or one that is not as ``state`` gives it.
        """
        tokens = state.get("graph_tokens")
        if not isinstance(tokens, int) or tokens < 0:
            raise ConfigError(
                f"latency profile: graph_tokens is {tokens!r}: give a whole number or profile again"
            )
        return cls(*saved_parts(state, cls.name), graph_tokens=tokens)

    @override
    def _unpack(self) -> None:
        super()._unpack()
        self._beyond = self._values[-1]
