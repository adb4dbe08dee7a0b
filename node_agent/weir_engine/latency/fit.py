"""Least squares weighted to relative error, robust to outliers, with coefficients of 0 or more.

Arrays in, coefficients out. Never in the path of ``plan``.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ROUNDS = 5
_HUBER = 1.0  # in robust standard deviations: low, so that the fit is close to the median
_SMALLEST_SPREAD = 0.005
_RIDGE = 1e-4


def fit_relative(
    features: Array,
    seconds: Array,
    weights: Array,
    prior: Array,
    *,
    last: Array | None = None,
) -> Array:
    """Coefficients, none negative, that keep |features @ c / seconds - 1| small for most rows.

    Shapes ``(rows, columns)``, ``(rows,)``, ``(rows,)``, ``(columns,)``; ``seconds`` above 0,
    ``weights`` 0 or more. Directions that the rows do not tell apart stay at ``prior``, scaled as a
    whole to the rows, so constant or collinear data cannot make coefficients explode. ``last``,
    an earlier fit of the same columns, only saves time.
    """
    guess = features @ prior
    known = guess > 0
    scale = _median(seconds[known] / guess[known]) if known.any() else 1.0
    target = prior * scale
    penalty, pull = _RIDGE * np.eye(len(target)), _RIDGE * target
    # Dividing by the measured value first bounds what an overlong step can do to the start.
    size, trust = seconds, weights
    coefficients = target if last is None else last
    for _ in range(_ROUNDS):
        squares = trust / (size * size)
        total = float(squares.sum())
        if total > 0:
            squares /= total
            coefficients = _solve(features, seconds, squares, coefficients, penalty, pull)
        else:
            coefficients = target
        size = np.maximum(features @ coefficients, 1e-9)
        residual = np.abs(seconds / size - 1.0)
        spread = max(1.4826 * _median(residual), _SMALLEST_SPREAD)
        trust = weights * np.minimum(1.0, _HUBER * spread / np.maximum(residual, 1e-12))
    return coefficients


def _median(values: Array) -> float:
    """``np.median`` of some values, none of them NaN, at a third of its cost."""
    high = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, high)[high])
    parted = np.partition(values, (high - 1, high))
    return (float(parted[high - 1]) + float(parted[high])) / 2


def _solve(
    features: Array, seconds: Array, weights: Array, guess: Array, penalty: Array, pull: Array
) -> Array:
    """Weighted least squares in columns of unit size; a ridge adds ``penalty`` and ``pull``."""
    weighted = (features * weights[:, None]).T
    gram = weighted @ features
    column = np.sqrt(gram.diagonal())
    column[column <= 0] = 1.0  # never seen: the ridge alone holds it at the target
    gram = gram / (column[:, None] * column) + penalty
    moment = (weighted @ seconds) / column + pull * column
    solution: Array = nonnegative(gram, moment, guess > 0) / column
    return solution


def nonnegative(gram: Array, moment: Array, likely: NDArray[np.bool_] | None = None) -> Array:
    """The x >= 0 that minimises x.gram.x / 2 - moment.x, for a positive definite ``gram``.

    ``likely``: which of x are probably above 0; where they are, one solution is all it takes.

    Source: Lawson & Hanson's active set, on the normal equations (Bro & de Jong 1997).
    """
    size = len(moment)
    least = 1e-12 * float(np.abs(moment).max(initial=1e-300))
    if likely is not None:
        solution = _solution(gram, moment, likely)
        above = np.count_nonzero(solution > 0)
        if above == size:
            return solution
        rising = moment - gram @ solution > least
        if above == np.count_nonzero(likely) and not np.count_nonzero(rising & ~likely):
            return solution
    solution = np.zeros(size)
    free = np.zeros(size, dtype=bool)
    for _ in range(10 * size):
        gradient = moment - gram @ solution
        candidates = ~free & (gradient > least)
        if not candidates.any():
            break
        free[int(np.argmax(np.where(candidates, gradient, -np.inf)))] = True
        while True:
            trial = _solution(gram, moment, free)
            negative = free & (trial <= 0)
            if not negative.any():
                solution = trial
                break
            ratio = solution[negative] / np.maximum(solution[negative] - trial[negative], 1e-300)
            solution = solution + float(ratio.min()) * (trial - solution)
            free &= solution > 1e-15
            solution[~free] = 0.0
    return solution


def _solution(gram: Array, moment: Array, free: NDArray[np.bool_]) -> Array:
    """The x that minimises it where only those that are ``free`` may differ from 0."""
    solution = np.zeros(len(moment))
    if np.count_nonzero(free) == len(moment):
        solution[:] = np.linalg.solve(gram, moment)
        return solution
    places = np.flatnonzero(free)
    solution[places] = np.linalg.solve(gram[places[:, None], places], moment[places])
    return solution
