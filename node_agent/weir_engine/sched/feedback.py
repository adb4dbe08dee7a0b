"""Measured latency against its threshold, as factors on what may be spent. Pure controllers."""

_STEP = 0.04
# Steps over which the average number of samples in a step is taken.
_STEPS = 50


class TailFeedback:
    """A factor on a latency budget that keeps a percentile at its threshold.

    Each sample over the threshold lowers the factor, each one under it raises it by the share that
    balances at ``allowed`` samples over (Robbins-Monro quantile tracking). The samples of one
    engine step are late together, so a step of average size moves the factor like one sample,
    however many requests decode in it. Starts at 1; stays within ``[low, high]``.

    Source: Weir (design: step budget, feedback on measured tail).
    """

    def __init__(self, *, allowed: float, low: float = 0.5, high: float = 1.0) -> None:
        self._allowed = allowed
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
        change = _STEP * (self._allowed * samples - over) / self._average
        self.factor = min(self._high, max(self._low, self.factor + change))


class MeanFeedback:
    """Takes spending back while a measured mean is above its threshold.

    The factor is 1 up to the threshold and falls to 0 half a tolerance above it. The mean runs over
    about ``samples`` samples. It catches what an account of known costs does not see, such as
    online requests that overlap more because they take longer. A sample that met no offline work
    is no evidence against it and counts for no more than the threshold, so that a cold start does
    not close the account.
    """

    def __init__(self, *, threshold_s: float, samples: int) -> None:
        self._threshold_s = threshold_s
        self._samples = samples
        self._seen = 0
        self._mean_s = 0.0

    def factor(self, tolerance_s: float) -> float:
        """What may be spent, 0 to 1."""
        over_s = self._mean_s - self._threshold_s
        return min(1.0, max(0.0, 1 - over_s / max(tolerance_s / 2, 1e-9)))

    def observe(self, seconds: float, *, beside_offline: bool) -> None:
        """Account for one sample."""
        counted_s = seconds if beside_offline else min(seconds, self._threshold_s)
        self._seen = min(self._seen + 1, self._samples)
        self._mean_s += (counted_s - self._mean_s) / self._seen
