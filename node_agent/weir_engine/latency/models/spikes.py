"""Finds where a module's time jumps with the number of tokens, with few measurements.

A function of a probe; the probe measures, nothing here does.
"""

from bisect import bisect_right
from collections.abc import Callable

Probe = Callable[[int], float]
"""Seconds that a module takes for a number of tokens, measured."""

_SMALLEST_RELATIVE = 0.01
_FIRST, _SECOND = 1, 16


def spike_search(probe: Probe, longest: int, *, stepped: bool = False) -> dict[int, float]:
    """Seconds at the sizes between 1 and ``longest`` that tell all spikes apart.

    A range whose ends differ by less than sizes 1 and 16 do is flat: its inside is a line. Any
    other is halved and searched on both sides. ``stepped``: sizes 1 and 16 may lie on two sides of
    a step, so that their difference says nothing.

    Deviations: less than 1% counts as flat too, since noise can make sizes 1 and 16 equal or turn
    them round, and the search would then chase noise; and the middle must lie on the line as well,
    since measured times also fall (waves of tiles), so that two ends can agree across a spike.

    Source: OmniServe §3.3.1, Alg. 1.
    """
    known = {1: probe(_FIRST)}

    def seconds(tokens: int) -> float:
        if tokens not in known:
            known[tokens] = probe(tokens)
        return known[tokens]

    flat_s = 0.0 if stepped else abs(seconds(min(_SECOND, longest)) - known[1])
    ranges = [(1, longest)]
    while ranges:
        low, high = ranges.pop()
        if high - low < 2:
            continue
        start_s, end_s = seconds(low), seconds(high)
        allowed_s = max(flat_s, _SMALLEST_RELATIVE * max(start_s, end_s))
        middle = (low + high) // 2
        bend_s = abs(seconds(middle) - (start_s + end_s) / 2)
        if abs(end_s - start_s) < allowed_s and bend_s < allowed_s:
            continue
        ranges += [(low, middle), (middle, high)]
    return dict(sorted(known.items()))


def table_of(points: dict[int, float], longest: int) -> list[float]:
    """Seconds by number of tokens from 0 to ``longest``: lines between points."""
    sizes = list(points)
    values: list[float] = [points[sizes[0]]]
    for tokens in range(1, longest + 1):
        i = min(max(bisect_right(sizes, tokens) - 1, 0), max(len(sizes) - 2, 0))
        low, high = sizes[i], sizes[min(i + 1, len(sizes) - 1)]
        share = 0.0 if high == low else (tokens - low) / (high - low)
        values.append(points[low] + (points[high] - points[low]) * share)
    return values
