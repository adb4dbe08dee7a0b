"""Echo's estimator: prefill and decode apart, pooled, then put together."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import Array, fit_relative
from weir_engine.latency.models.fitted import FittedModel

_BUCKETS = 12
_SMALLEST_S = 1e-6
_FLOOR_QUANTILES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_PAIR, _TOKEN, _FLOOR, _OVERLAP = 0, 1, 2, 3
_POOL = 4  # where the first bucket's three coefficients start
_TERMS = 3


def _bucket(requests: int) -> int:
    """Batch sizes 1, 2, 3-4, 5-8, ...: each doubling is a bucket."""
    return min((requests - 1).bit_length(), _BUCKETS - 1)


class EchoModel(FittedModel):
    """T = max(P, D) + mu * min(P, D), with P = max(alpha * L2 + beta * L, c).

    L sums the new tokens of the prefills and L2 twice their (query, key) pairs: l squared for a
    whole prompt of l tokens. D = kappa + gamma * max + delta * mean of the decodes' contexts.

    Source: Echo §5.2, eqs. 6 to 8. Deviations: eq. 7 does not know the batch size, so its
    coefficients are fitted per bucket of sizes, with a constant kappa that every step pays; eq. 8
    with 0 <= lambda <= 1 never exceeds the larger part, against the text around it, so mu stands
    for it (0 <= mu <= 1). The floor c is paid once a step: it is the load of the weights. Eq. 7 is
    not monotone: a decode with little context lowers the mean.
    """

    name: ClassVar[str] = "echo"
    columns: ClassVar[int] = 5
    features_by_name: ClassVar[tuple[str, ...]] = (
        "pair",
        "token",
        "floor",
        "overlap",
        *(
            f"{term}_{bucket}"
            for bucket in range(_BUCKETS)
            for term in ("constant", "longest", "mean")
        ),
    )
    defaults: ClassVar[tuple[float, ...]] = (
        1e-10,
        1e-4,
        1e-2,
        0.5,
        *(value for b in range(_BUCKETS) for value in (1e-2, 1e-8 * 2**b, 1e-8 * 2**b)),
    )

    @property
    @override
    def fixed_s(self) -> float:
        return min(self._values[_FLOOR], self._values[_POOL])

    @override
    def features(self, shape: StepShape) -> tuple[float, ...]:
        decodes = shape.decode_requests
        mean = shape.decode_context / decodes if decodes else 0.0
        longest = max(float(shape.decode_longest), mean)
        return (
            2.0 * shape.prefill_history,
            float(shape.prefill_tokens),
            float(decodes),
            longest,
            mean,
        )

    @override
    def predict(self, shape: StepShape) -> float:
        if shape.is_empty:
            return 0.0
        prefill_s, decode_s = self._prefill_s(shape), self._decode_s(shape)
        larger, smaller = max(prefill_s, decode_s), min(prefill_s, decode_s)
        return larger + self._values[_OVERLAP] * smaller

    @override
    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        before_s = self.fixed_s if shape.is_empty else self.predict(shape)
        return max(0.0, self.predict(shape.with_decode(context_tokens)) - before_s)

    @override
    def max_prefill_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, q: float, upper: int
    ) -> int:
        if upper < 1 or limit_s <= 0:
            return 0
        allowed_s = self.within(limit_s, q)
        if self.predict(shape.with_prefill(upper, computed_tokens)) <= allowed_s:
            return upper
        low, high = 0, upper - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(shape.with_prefill(middle, computed_tokens)) <= allowed_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _prefill_s(self, shape: StepShape) -> float:
        if not shape.prefill_requests:
            return 0.0
        values = self._values
        sum_s = values[_PAIR] * 2 * shape.prefill_history + values[_TOKEN] * shape.prefill_tokens
        return max(sum_s, values[_FLOOR])

    def _decode_s(self, shape: StepShape) -> float:
        decodes = shape.decode_requests
        if not decodes:
            return 0.0
        at = _POOL + _TERMS * _bucket(decodes)
        constant, gamma, delta = self._values[at : at + _TERMS]
        mean = shape.decode_context / decodes
        return constant + gamma * max(shape.decode_longest, mean) + delta * mean

    @override
    def _fit(self, rows: Array, seconds: Array, weights: Array) -> Array:
        prefills, decodes = rows[:, 1] > 0, rows[:, 2] > 0
        values = np.array(self._values)  # what no kept step tells stays as it was found
        alone = prefills & ~decodes
        if alone.any():
            values[:_OVERLAP] = self._fit_prefill(rows[alone], seconds[alone], weights[alone])
        self._fit_decodes(values, rows, seconds, weights, decodes & ~prefills)
        both = prefills & decodes
        if both.any():
            values[_OVERLAP] = _fit_overlap(values, rows[both], seconds[both], weights[both])
        return values

    def _fit_prefill(self, rows: Array, seconds: Array, weights: Array) -> Array:
        """alpha, beta and c: of several floors the one with the least error."""
        best, least = self._prior[:_OVERLAP], np.inf
        for quantile in _FLOOR_QUANTILES:
            floor_s = float(np.quantile(seconds, quantile))
            above = seconds > floor_s
            if not above.any():
                above = seconds >= floor_s
            slopes = fit_relative(rows[above, :2], seconds[above], weights[above], self._prior[:2])
            predicted = np.maximum(rows[:, :2] @ slopes, floor_s)
            error = float(np.average(np.abs(predicted / seconds - 1), weights=weights))
            if error < least:
                best, least = np.array([*slopes, floor_s]), error
        return best

    def _fit_decodes(
        self, values: Array, rows: Array, seconds: Array, weights: Array, alone: NDArray[np.bool_]
    ) -> None:
        """kappa, gamma, delta of each bucket seen; the others take those of the nearest below."""
        buckets = np.array([_bucket(max(int(count), 1)) for count in rows[:, 2]])
        pooled = values[_POOL:].reshape(_BUCKETS, _TERMS)  # a view
        prior = self._prior[_POOL:].reshape(_BUCKETS, _TERMS)
        seen = sorted(set(buckets[alone].tolist()))
        for bucket in seen:
            own = alone & (buckets == bucket)
            table = np.column_stack([np.ones(int(own.sum())), rows[own, 3], rows[own, 4]])
            pooled[bucket] = fit_relative(table, seconds[own], weights[own], prior[bucket])
        for bucket in range(_BUCKETS) if seen else ():
            pooled[bucket] = pooled[max((b for b in seen if b <= bucket), default=seen[0])]

    @override
    def _load(self, values: list[float]) -> None:
        values[_FLOOR] = max(values[_FLOOR], _SMALLEST_S)
        values[_OVERLAP] = min(max(values[_OVERLAP], 0.0), 1.0)
        values[_POOL] = max(values[_POOL], _SMALLEST_S)
        self._values = tuple(values)


def _fit_overlap(values: Array, rows: Array, seconds: Array, weights: Array) -> float:
    """Mu by least squares on the relative error of mixed steps."""
    prefill = np.maximum(rows[:, :2] @ values[:_FLOOR], values[_FLOOR])
    pooled = values[_POOL:].reshape(_BUCKETS, _TERMS)
    own = pooled[[_bucket(int(count)) for count in rows[:, 2]]]
    decode = own[:, 0] + own[:, 1] * rows[:, 3] + own[:, 2] * rows[:, 4]
    larger, smaller = np.maximum(prefill, decode), np.minimum(prefill, decode)
    scale = weights / seconds**2
    return float((scale * smaller * (seconds - larger)).sum() / (scale * smaller**2).sum())
