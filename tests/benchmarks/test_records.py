"""Latency as a client sees it, and tokens credited to the moment that serves them."""

from math import isnan

import pytest

from weir_cli.loadlab.records import (
    RequestRecord,
    TokenEvent,
    latency_stats,
    online_latency,
    percentile,
    token_counts,
    token_gaps_s,
)


def record(
    sent_s: float,
    *events: tuple[float, int],
    error: str | None = None,
    prompt: int = 10,
    cached: int | None = None,
) -> RequestRecord:
    return RequestRecord(
        name="r",
        sent_s=sent_s,
        prompt_tokens=prompt,
        events=tuple(TokenEvent(at_s=at_s, count=count) for at_s, count in events),
        error=error,
        cached_tokens=cached,
    )


def test_percentiles_are_samples_by_nearest_rank() -> None:
    hundred = [float(value) for value in range(1, 101)]
    assert percentile(hundred, 0.99) == 99.0
    assert percentile(hundred, 0.5) == 50.0
    assert percentile([7.0], 0.99) == 7.0


def test_tokens_that_arrive_together_are_zero_apart_and_the_mean_stays() -> None:
    gaps = token_gaps_s(record(0.0, (1.0, 1), (1.4, 2), (1.5, 1)))
    assert gaps == pytest.approx([0.4, 0.0, 0.1])
    assert sum(gaps) == pytest.approx(0.5)


def test_ttft_counts_from_the_time_a_request_was_due() -> None:
    assert record(2.0, (2.5, 1)).ttft_s == pytest.approx(0.5)
    assert record(2.0).ttft_s is None


def test_a_window_takes_the_requests_due_in_it_to_their_end() -> None:
    records = [record(0.9, (1.1, 1)), record(1.0, (1.2, 1), (9.0, 1)), record(2.0, (2.1, 1))]
    latency = online_latency(records, start_s=1.0, end_s=2.0)
    assert latency.requests == 1
    assert latency.tbt.mean_s == pytest.approx(7.8)


def test_a_failed_request_is_counted_and_gives_no_latency() -> None:
    latency = online_latency(
        [record(1.0, (1.2, 1), error="3 of 4 tokens"), record(1.5)], start_s=1.0, end_s=2.0
    )
    assert (latency.requests, latency.failed, latency.ttft.count) == (2, 2, 0)
    assert isnan(latency.ttft.mean_s)


def test_prompt_tokens_count_at_the_first_token_and_outputs_as_they_come() -> None:
    records = [record(0.0, (0.9, 1), (1.1, 1), (1.9, 1), (2.0, 1)), record(0.0, (1.5, 2), cached=8)]
    counts = token_counts(records, start_s=1.0, end_s=2.0)
    assert (counts.prompt, counts.output, counts.cached) == (10, 4, 8)
    assert (counts.served, counts.computed) == (14, 6)
    assert counts.hit_rate == pytest.approx(0.8)


def test_an_unknown_statistic_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="p42"):
        latency_stats([1.0]).value_s("p42")
