"""What the load generator writes down about each request, and a window's statistics over it.

Pure: no clock and no I/O. Times are seconds on one monotonic clock of the load generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, nan

STATISTICS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEvent:
    """``count`` tokens reached the client at ``at_s``."""

    at_s: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRecord:
    """One request as its client saw it.

    ``sent_s`` is the moment it was due (open loop: a late client does not hide waiting).
    ``error`` is set when the request did not end with all of its tokens. ``cached_tokens`` of its
    prompt were found in the prefix cache; None where the server does not say.
    """

    name: str
    sent_s: float
    prompt_tokens: int
    events: tuple[TokenEvent, ...]
    error: str | None = None
    cached_tokens: int | None = None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from due time to the first token; None without one."""
        return self.events[0].at_s - self.sent_s if self.events else None

    @property
    def output_tokens(self) -> int:
        """Tokens received."""
        return sum(event.count for event in self.events)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyStats:
    """Seconds over ``count`` samples; all nan without samples."""

    count: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float

    def value_s(self, statistic: str) -> float:
        """The named statistic, one of ``STATISTICS``.

        Raises:
            ValueError: an unknown name.
        """
        if statistic not in STATISTICS:
            raise ValueError(f"statistic {statistic!r} is unknown: give one of {STATISTICS}")
        return float(getattr(self, f"{statistic}_s"))


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineLatency:
    """Latency of the requests that were due in a window, and what the window carried."""

    requests: int
    failed: int
    ttft: LatencyStats
    tbt: LatencyStats
    tpot: LatencyStats


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest sample that ``fraction`` of all samples do not exceed (nearest rank)."""
    return ordered[max(0, ceil(fraction * len(ordered)) - 1)]


def latency_stats(samples_s: Iterable[float]) -> LatencyStats:
    """Statistics of the samples, by nearest rank."""
    ordered = sorted(samples_s)
    if not ordered:
        return LatencyStats(count=0, mean_s=nan, p50_s=nan, p90_s=nan, p99_s=nan)
    return LatencyStats(
        count=len(ordered),
        mean_s=sum(ordered) / len(ordered),
        p50_s=percentile(ordered, 0.5),
        p90_s=percentile(ordered, 0.9),
        p99_s=percentile(ordered, 0.99),
    )


def token_gaps_s(record: RequestRecord) -> list[float]:
    """Time between each two consecutive tokens; tokens that arrive together are 0 apart."""
    gaps: list[float] = []
    for earlier, later in zip(record.events, record.events[1:], strict=False):
        gaps.append(later.at_s - earlier.at_s)
        gaps.extend([0.0] * (later.count - 1))
    return gaps


def online_latency(
    records: Iterable[RequestRecord], *, start_s: float, end_s: float
) -> OnlineLatency:
    """Latency of the requests due in ``[start_s, end_s)``, followed to their end."""
    due = [record for record in records if start_s <= record.sent_s < end_s]
    whole = [record for record in due if record.error is None and record.events]
    return OnlineLatency(
        requests=len(due),
        failed=len(due) - len(whole),
        ttft=latency_stats(record.events[0].at_s - record.sent_s for record in whole),
        tbt=latency_stats(gap for record in whole for gap in token_gaps_s(record)),
        tpot=latency_stats(
            (record.events[-1].at_s - record.events[0].at_s) / (record.output_tokens - 1)
            for record in whole
            if record.output_tokens > 1
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCounts:
    """Tokens of a window: a prompt counts at its first token, an output as it comes."""

    prompt: int
    cached: int
    output: int

    @property
    def served(self) -> int:
        """Prompt and output, cached or not."""
        return self.prompt + self.output

    @property
    def computed(self) -> int:
        """What the engine computed: without prefix-cache hits."""
        return self.served - self.cached

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens found in the cache; nan without prompts."""
        return self.cached / self.prompt if self.prompt else nan


def token_counts(records: Iterable[RequestRecord], *, start_s: float, end_s: float) -> TokenCounts:
    """The tokens of ``[start_s, end_s)``."""
    prompt = cached = output = 0
    for record in records:
        if record.events and start_s <= record.events[0].at_s < end_s:
            prompt += record.prompt_tokens
            cached += record.cached_tokens or 0
        output += sum(event.count for event in record.events if start_s <= event.at_s < end_s)
    return TokenCounts(prompt=prompt, cached=cached, output=output)
