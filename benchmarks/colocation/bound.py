"""The most that any policy can serve offline under a step limit: (1 − c0/S − u) of full speed.

c0 is the fixed time of a step, S the step limit, u the share of time that online work takes beyond
its steps' fixed parts. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weir_cli.loadlab.measure import Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """How the bound is made; ``full_per_s`` is offline speed if steps had no fixed part.

    ``c0_of_arms_s`` is the same fixed time from a regression over the static arms, a check; None
    with fewer than three of them.
    """

    c0_s: float
    online_share: float
    ceiling_per_s: float
    ceiling_step_s: float
    full_per_s: float
    c0_of_arms_s: float | None

    def tokens_per_s(self, step_limit_s: float) -> float:
        """Offline tokens a second under a step limit; at least 0."""
        return max(0.0, self.full_per_s * (1 - self.c0_s / step_limit_s - self.online_share))


def step_s(measurement: Measurement) -> float:
    """Mean duration of a step: the engine's processor time over its steps."""
    return measurement.busy_share / measurement.steps_per_s if measurement.steps_per_s else 0.0


def bound_of(
    *,
    c0_s: float,
    online_only: Sequence[Measurement],
    ceiling: Sequence[Measurement],
    packed: Sequence[Measurement],
) -> Bound:
    """The bound from the online-only arm, the ceiling and, as a check, arms with full steps.

    u is the online-only arm's busy share less c0 for each of its steps.
    """
    share = float(np.mean([run.busy_share - c0_s * run.steps_per_s for run in online_only]))
    ceiling_per_s = float(np.mean([run.offline_served_per_s for run in ceiling]))
    ceiling_step_s = float(np.mean([step_s(run) for run in ceiling]))
    full = ceiling_per_s / max(1e-9, 1 - c0_s / ceiling_step_s)
    return Bound(
        c0_s=c0_s,
        online_share=max(0.0, share),
        ceiling_per_s=ceiling_per_s,
        ceiling_step_s=ceiling_step_s,
        full_per_s=full,
        c0_of_arms_s=_c0_of_arms(packed, full),
    )


def _c0_of_arms(packed: Sequence[Measurement], full_per_s: float) -> float | None:
    """Minus the slope of served share over steps a second, by least squares."""
    points = [(1 / step_s(run), run.offline_served_per_s / full_per_s) for run in packed]
    if len({round(x, 3) for x, _ in points}) < 3:
        return None
    slope, _ = np.polyfit([x for x, _ in points], [y for _, y in points], 1)
    return float(-slope)
