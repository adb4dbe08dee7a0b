"""What is measured of a streamed response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from weir_agent.asgi_call import Message, Receive, Scope, Send
from weir_agent.latency import (
    GENERATING_PATHS,
    MOST_SAMPLES,
    TOKENS,
    LatencyProbe,
    OnlineLatency,
    SampleWindow,
)

CHAT_EVENTS = [
    (0.5, b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'),
    (0.5, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'),
    (0.6, b": keep-alive\n\n"),
    (0.7, b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n'),
    (1.0, b'data: {"choices":[{"delta":{"content":"c"},"finish_reason":"stop"}]}\n\n'),
    (1.1, b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'),
    (1.2, b"data: [DONE]\n\n"),
]


async def measure(
    events: list[tuple[float, bytes]],
    *,
    path: str = "/v1/chat/completions",
    status: int = 200,
    content_type: bytes = b"text/event-stream; charset=utf-8",
    given: Sequence[Mapping[int, int]] | None = None,
) -> dict[str, list[float]]:
    """What is measured of a response; ``given``: new tokens by choice before each event."""
    seen: dict[str, list[float]] = {"ttft": [], "tbt": [], "tpot": []}
    now_s = 0.0

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal now_s
        headers = [(b"content-type", content_type)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        tokens = TOKENS.get()
        if given is not None and tokens is not None:
            assert tokens.prompt(2) == 0
        nothing: list[Mapping[int, int]] = [{}] * len(events)
        for (at_s, body), new in zip(events, given or nothing, strict=True):
            for choice, count in new.items():
                assert tokens is not None
                tokens.add(choice, count)
            now_s = at_s
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(_message: Message) -> None:
        return

    latency = OnlineLatency(lambda metric, value_s: seen[metric].append(value_s))
    probe = LatencyProbe(app, latency, clock=lambda: now_s)
    await probe({"type": "http", "path": path}, receive, send)
    assert probe.in_flight == 0
    assert TOKENS.get() is None
    return seen


RESPONSE_EVENTS = [
    (0.1, b'event: response.created\ndata: {"type":"response.created"}\n\n'),
    (0.5, b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'),
    (0.7, b'event: response.output_text.delta\ndata: {"delta":"b"}\n\n'),
    (1.0, b'event: response.output_text.delta\ndata: {"delta":"c"}\n\n'),
    (1.1, b'event: response.completed\ndata: {"type":"response.completed"}\n\n'),
]
MESSAGE_EVENTS = [
    (0.1, b'event: message_start\ndata: {"type":"message_start"}\n\n'),
    (0.5, b'event: content_block_start\ndata: {"index":0}\n\n'),
    (0.5, b'event: content_block_delta\ndata: {"delta":{"text":"a"}}\n\n'),
    (0.7, b'event: content_block_delta\ndata: {"delta":{"text":"b"}}\n\n'),
    (1.0, b'event: content_block_delta\ndata: {"delta":{"text":"c"}}\n\n'),
    (1.1, b'event: message_delta\ndata: {"usage":{"output_tokens":3}}\n\n'),
    (1.1, b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
]


@pytest.mark.parametrize(
    ("path", "events"), [("/v1/responses", RESPONSE_EVENTS), ("/v1/messages", MESSAGE_EVENTS)]
)
async def test_streams_of_named_events_are_measured_too(
    path: str, events: list[tuple[float, bytes]]
) -> None:
    seen = await measure(events, path=path)
    assert seen["ttft"] == [0.5]
    assert seen["tbt"] == pytest.approx([0.2, 0.3])
    assert seen["tpot"] == pytest.approx([0.25])


async def test_a_chat_stream_counts_tokens_not_events() -> None:
    seen = await measure(CHAT_EVENTS)
    assert seen["ttft"] == [0.5]
    assert seen["tbt"] == pytest.approx([0.2, 0.3])
    assert seen["tpot"] == pytest.approx([0.25])


async def test_a_completion_stream_has_no_opening_event() -> None:
    events = [
        (0.2, b'data: {"choices":[{"text":"a"}]}\n\n'),
        (0.3, b'data: {"choices":[{"text":"b"}]}\n\n'),
    ]
    seen = await measure(events, path="/v1/completions")
    assert seen["ttft"] == [0.2]
    assert seen["tbt"] == pytest.approx([0.1])


async def test_choices_that_stream_side_by_side_are_measured_each_by_itself() -> None:
    """Taken for one, two choices would seem to be twice as fast as either is."""
    begin = b'data: {"id":"a","choices":[{"index":%d,"delta":'
    events = [(0.5, begin % n + b'{"role":"assistant","content":""}}]}\n\n') for n in (0, 1)]
    for at_s in (0.5, 0.7, 1.0):
        events += [(at_s, begin % n + b'{"content":"a"}}]}\n\n') for n in (0, 1)]
    seen = await measure(events)
    assert seen["ttft"] == [0.5]
    assert seen["tbt"] == pytest.approx([0.2, 0.2, 0.3, 0.3])
    assert seen["tpot"] == pytest.approx([0.25, 0.25])


async def test_several_tokens_in_an_event_are_several_short_waits() -> None:
    """With ``stream_interval`` 4 an event would seem to be a token that took four times as long."""
    event = b'data: {"id":"a","choices":[{"index":0,"text":"word"}]}\n\n'
    seen = await measure(
        [(0.5, event), (0.9, event), (1.3, event)],
        path="/v1/completions",
        given=[{0: 1}, {0: 4}, {0: 4}],
    )
    assert seen["ttft"] == [0.5]
    assert seen["tbt"] == pytest.approx([0.1] * 8)
    assert seen["tpot"] == pytest.approx([0.1])


async def test_a_tool_call_that_a_parser_kept_back_took_as_long_as_its_tokens() -> None:
    begin = b'data: {"id":"a","choices":[{"index":0,"delta":'
    seen = await measure(
        [
            (0.5, begin + b'{"role":"assistant","content":""}}]}\n\n'),
            (0.5, begin + b'{"content":""}}]}\n\n'),
            (2.5, begin + b'{"tool_calls":[{"index":0}]},"finish_reason":"tool_calls"}]}\n\n'),
            (2.5, begin + b'{"content":"of no token"}}]}\n\n'),
        ],
        given=[{0: 1}, {}, {0: 20}, {}],
    )
    assert seen["ttft"] == [0.5]
    assert seen["tbt"] == pytest.approx([0.1] * 20)
    assert seen["tpot"] == pytest.approx([0.1])


async def test_tokens_of_several_choices_that_come_at_once_are_each_their_own() -> None:
    begin = b'data: {"id":"a","choices":[{"index":%d,"text":"word"}]}\n\n'
    seen = await measure(
        [(0.5, begin % 0), (0.5, begin % 1), (0.9, begin % 1), (0.9, begin % 0)],
        path="/v1/completions",
        given=[{0: 1, 1: 1}, {}, {0: 2, 1: 4}, {}],
    )
    assert seen["ttft"] == [0.5]
    assert seen["tbt"] == pytest.approx([0.1] * 4 + [0.2] * 2)
    assert seen["tpot"] == pytest.approx([0.2, 0.1])


async def test_streams_of_named_events_have_the_tokens_of_all_that_was_generated() -> None:
    seen = await measure(
        RESPONSE_EVENTS, path="/v1/responses", given=[{0: 1}, {}, {0: 2}, {0: 3}, {0: 1}]
    )
    assert seen["ttft"] == [0.5]
    assert seen["tbt"] == pytest.approx([0.1] * 5)
    assert seen["tpot"] == pytest.approx([0.1])


async def test_one_event_is_a_bounded_number_of_samples() -> None:
    event = b'data: {"choices":[{"index":0,"text":"word"}]}\n\n'
    seen = await measure(
        [(0.5, event), (1.5, event)], path="/v1/completions", given=[{0: 1}, {0: 10_000}]
    )
    assert seen["tbt"] == pytest.approx([1 / 10_000] * MOST_SAMPLES)
    assert seen["tpot"] == pytest.approx([1 / 10_000])


async def test_an_error_instead_of_a_first_token_is_no_token() -> None:
    seen = await measure([(0.5, b'data: {"error":{"code":500}}\n\n')], given=[{}])
    assert seen == {"ttft": [], "tbt": [], "tpot": []}


@pytest.mark.parametrize("path", sorted(GENERATING_PATHS))
async def test_every_endpoint_that_streams_is_measured(path: str) -> None:
    seen = await measure(CHAT_EVENTS, path=path)
    assert (seen["ttft"], len(seen["tbt"]), len(seen["tpot"])) == ([0.5], 2, 1)


def test_the_endpoints_that_stream_are_known() -> None:
    """``/invocations`` is any of the others, by its body."""
    assert {"/invocations", "/inference/v1/generate", "/cohere/v2/chat"} <= GENERATING_PATHS


@pytest.mark.parametrize(
    "changes",
    [{"path": "/v1/models"}, {"status": 400}, {"content_type": b"application/json"}],
)
async def test_only_answered_streams_are_measured(changes: dict[str, object]) -> None:
    seen = await measure(CHAT_EVENTS, **changes)  # type: ignore[arg-type]
    assert seen == {"ttft": [], "tbt": [], "tpot": []}


def test_a_window_forgets_what_is_old_and_what_is_too_much() -> None:
    window = SampleWindow(window_s=10, capacity=8)
    for second in range(20):
        window.add(float(second), float(second))
    summary = window.summary(20.0)
    assert (summary.count, summary.mean_s) == (8, 15.5)
    assert window.summary(29.5).count == 0
    assert window.statistic(29.5, "p99") is None
    assert window.statistic(20.0, "mean") == 15.5


def test_the_newest_of_a_window_are_those_that_came_last() -> None:
    window = SampleWindow(window_s=10, capacity=8)
    for second in range(3):
        window.add(float(second), float(second))
    assert [window.summary(3.0, newest=n).mean_s for n in (1, 2, 5, 9)] == [2.0, 1.5, 1.0, 1.0]
    for second in range(3, 13):
        window.add(float(second), float(second))
    assert [window.summary(13.0, newest=n).mean_s for n in (1, 6, 8)] == [12.0, 9.5, 8.5]
    assert window.summary(19.5, newest=6).count == 3


def test_percentiles() -> None:
    window = SampleWindow()
    values: Iterator[float] = (value / 100 for value in range(101))
    for value in values:
        window.add(0.0, value)
    summary = window.summary(1.0)
    assert (summary.p50_s, summary.p90_s, summary.p99_s) == pytest.approx((0.5, 0.9, 0.99))
