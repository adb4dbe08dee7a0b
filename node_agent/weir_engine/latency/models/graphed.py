"""The linear model of an engine whose small steps are CUDA graphs."""

from collections.abc import Mapping
from typing import ClassVar, Self

from typing_extensions import override

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models.attention import AttentionModel
from weir_engine.latency.models.fitted import saved_parts
from weir_engine.latency.quantile import ResidualQuantiles


class GraphedModel(AttentionModel):
    """``AttentionModel`` and what a step of more than ``graph_tokens`` tokens costs besides.

    Kernels of a step within graphs are launched as one; beyond, one by one, which takes a slow
    host longer than the GPU computes a step of hundreds of tokens. Tokens beyond have a price of
    their own, too: without compilation kernels are not fused.
    """

    name: ClassVar[str] = "attention-graphs"
    features_by_name: ClassVar[tuple[str, ...]] = (
        *AttentionModel.features_by_name,
        "beyond_graphs",
        "beyond_tokens",
    )
    defaults: ClassVar[tuple[float, ...]] = (*AttentionModel.defaults, 0.0, 0.0)

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

    @override
    def beyond_graphs_s(self, tokens: int) -> float:
        more = tokens - self._graph_tokens
        return self._beyond + self._beyond_token * more if 0 < more < tokens else 0.0

    @override
    def features(self, shape: StepShape) -> tuple[float, ...]:
        beyond = self._is_beyond(shape)
        more = float(shape.tokens - self._graph_tokens) if beyond else 0.0
        return (*super().features(shape), float(beyond), more)

    @override
    def predict(self, shape: StepShape) -> float:
        seconds = super().predict(shape)
        if self._is_beyond(shape):
            more = shape.prefill_tokens + shape.decode_requests - self._graph_tokens
            seconds += self._beyond + self._beyond_token * more
        return seconds

    @override
    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        seconds = super().decode_cost(context_tokens, shape)
        return seconds + self._beyond_token if self._is_beyond(shape) else seconds

    @override
    def max_prefill_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, q: float, upper: int
    ) -> int:
        if not self._graph_tokens:
            return self._fitting(shape, computed_tokens, limit_s, q, upper)
        each_s, left = self._beyond_token, self._graph_tokens - shape.tokens
        if left < 0:
            return self._fitting(shape, computed_tokens, limit_s, q, upper, (0.0, each_s))
        tokens = self._fitting(shape, computed_tokens, limit_s, q, min(left, upper))
        if tokens < left or upper <= left:
            return tokens
        besides_s = (self._beyond - each_s * left, each_s)
        return max(tokens, self._fitting(shape, computed_tokens, limit_s, q, upper, besides_s))

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
        self._beyond, self._beyond_token = self._values[-2:]
