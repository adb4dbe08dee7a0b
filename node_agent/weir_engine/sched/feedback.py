"""Measured latency against its threshold, as factors on what may be spent. Pure controllers."""

_STEP = 0.04


class TailFeedback:
    """A factor on a latency budget that keeps a percentile at its threshold.

    Each sample over the threshold lowers the factor by a step, each one under it raises it by the
    share that balances at ``allowed`` samples over (Robbins-Monro quantile tracking). Starts at 1;
    stays within ``[low, high]``.

    Source: Weir (design: step budget, feedback on measured tail).
    """

    def __init__(self, *, allowed: float, low: float = 0.5, high: float = 1.0) -> None:
        self._allowed = allowed
        self._low = low
        self._high = high
        self.factor = min(1.0, high)

    def observe(self, *, over: bool) -> None:
        """Account for one sample."""
        change = -_STEP * (1 - self._allowed) if over else _STEP * self._allowed
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
