"""Measured latency against its threshold, as factors on what may be spent. Pure controllers."""

from math import exp, inf

_STEP = 0.04
# Steps over which the average number of samples in a step is taken.
_STEPS = 50


class TailFeedback:
    """A factor on a latency budget that keeps a percentile at its threshold.

    Each sample over the threshold lowers the factor, each one under it raises it by the share that
    balances at ``allowed`` samples over (Robbins-Monro quantile tracking). The samples of one
    engine step are late together, so a step of average size moves the factor like one sample,
    however many requests decode in it. Starts at 1; stays within ``[low, high]``. ``allowed``
    may be changed between samples.

    Source: Weir (design: step budget, feedback on measured tail).
    """

    def __init__(self, *, allowed: float, low: float = 0.5, high: float = 1.0) -> None:
        self.allowed = allowed
        self._low = low
        self._high = high
        self._samples = 0
        self._over = 0
        self._average = 0.0
        self._steps = 0
        self.factor = min(1.0, high)

    def observe(self, *, over: bool) -> None:
        """Take one sample of the step that ended."""
        self._samples += 1
        self._over += over

    def end_step(self) -> None:
        """Account for the samples taken since the last call."""
        samples, over = self._samples, self._over
        if not samples:
            return
        self._samples = self._over = 0
        self._steps = min(self._steps + 1, _STEPS)
        self._average += (samples - self._average) / self._steps
        change = _STEP * (self.allowed * samples - over) / self._average
        self.factor = min(self._high, max(self._low, self.factor + change))


class TimeShare:
    """The share of the time that something takes, 0 to 1, over about ``memory_s``."""

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self.share = 0.0

    def observe(self, taken_s: float, passed_s: float) -> None:
        """It took so much of the seconds that passed."""
        if passed_s <= 0:
            return
        taken = min(max(taken_s / passed_s, 0.0), 1.0)
        self.share += (taken - self.share) * (1 - exp(-passed_s / self._memory_s))


class Rate:
    """How many of something come a second, over about ``memory_s`` or what has passed of it."""

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._passed_s = 0.0
        self.per_s = 0.0

    def observe(self, count: int, passed_s: float) -> None:
        """So many came in the seconds that passed."""
        if passed_s <= 0:
            return
        self._passed_s = min(self._passed_s + passed_s, self._memory_s)
        share = min(passed_s / self._passed_s, 1.0)
        self.per_s += (count / passed_s - self.per_s) * share


class SlackBank:
    """What a mean has left: the sum of allowed less measured latency, seconds over samples.

    Bounded both ways: a saving above ``most_s`` would let the mean exceed its SLO for as long as it
    lasts when it is spent, and a debt below ``-debt_s`` would keep offline work out long after the
    latency is right again. The bound on savings is thus the memory of the mean.
    """

    def __init__(self, *, most_s: float = inf, debt_s: float = inf) -> None:
        self.most_s = most_s
        self.debt_s = debt_s
        self.level_s = 0.0

    def add(self, gain_s: float) -> None:
        """One sample's allowed less measured seconds."""
        self.level_s = min(self.most_s, max(-self.debt_s, self.level_s + gain_s))
