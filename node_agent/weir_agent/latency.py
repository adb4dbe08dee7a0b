"""Latency of online requests as clients see it: time stamps on streamed responses, nothing held.

Only responses that stream events are measured. How many tokens an event carries is not in it: who
takes them from the engine says so (``TOKENS``). What an SLO makes of it is decided elsewhere.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from weir_agent.asgi_call import AsgiApp, Message, Receive, Scope, Send

GENERATING_PATHS = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
    "/cohere/v2/chat", "/inference/v1/generate", "/invocations",
})  # fmt: skip
WINDOW_S = 60.0
COMPARED_VALUES = 4_096  # what the engine keeps of each latency: it waits while they are sorted
MOST_SAMPLES = 256  # of one event: online responses wait while they are counted
_CHOICE = re.compile(rb'"choices":\[\{"index":(\d+)')
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A latency over a window, in seconds; zeros of nothing."""

    count: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0


class SampleWindow:
    """The values of the last minute, at most the newest 16,384 of them: a summary takes 0.3 ms."""

    def __init__(self, *, window_s: float = WINDOW_S, capacity: int = 16_384) -> None:
        self._window_s = window_s
        self._times_s = np.full(capacity, -np.inf)
        self._values_s = np.zeros(capacity)
        self._next = 0

    def add(self, now_s: float, value_s: float) -> None:
        """One more value, seen at ``now_s``."""
        self._times_s[self._next] = now_s
        self._values_s[self._next] = value_s
        self._next = (self._next + 1) % len(self._times_s)

    def summary(self, now_s: float, *, newest: int | None = None) -> Summary:
        """Count, mean and percentiles of what is in the window, or of its ``newest`` values."""
        times_s, values = self._times_s, self._values_s
        if newest is not None and newest < len(values):
            latest = np.arange(self._next - newest, self._next) % len(values)
            times_s, values = times_s[latest], values[latest]
        values = values[times_s > now_s - self._window_s]
        if not len(values):
            return Summary()
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        return Summary(
            count=len(values),
            mean_s=float(values.mean()),
            p50_s=float(p50),
            p90_s=float(p90),
            p99_s=float(p99),
        )

    def statistic(self, now_s: float, name: str) -> float | None:
        """``mean`` or ``pNN`` of the window; None of nothing."""
        values = self._values_s[self._times_s > now_s - self._window_s]
        if not len(values):
            return None
        return float(values.mean() if name == "mean" else np.percentile(values, float(name[1:])))


class OnlineLatency:
    """TTFT, TBT and TPOT of online requests; ``observe`` is told each value too (for metrics)."""

    def __init__(self, observe: Callable[[str, float], None] = lambda _metric, _s: None) -> None:
        self.windows = {metric: SampleWindow() for metric in ("ttft", "tbt", "tpot")}
        self._observe = observe

    def add(self, metric: str, now_s: float, value_s: float) -> None:
        """One more value of a metric."""
        self.windows[metric].add(now_s, value_s)
        self._observe(metric, value_s)


class TokenCount:
    """The tokens that the engine has given for one response, by choice.

    Choices are numbered as in its events: those of the first prompt, then those of the next.
    """

    def __init__(self) -> None:
        self._choices = 0
        self._by_choice: Counter[int] = Counter()
        self._total = 0

    def prompt(self, choices: int) -> int:
        """One more prompt of the request enters the engine; the number of its first choice."""
        first, self._choices = self._choices, self._choices + choices
        return first

    def add(self, choice: int, tokens: int) -> None:
        """So many more tokens of a choice."""
        self._by_choice[choice] += tokens
        self._total += tokens

    def of(self, choice: int | None) -> int | None:
        """Tokens of a choice, None being the only one; None where nobody counts them."""
        if not self._choices:
            return None
        return self._total if choice is None else self._by_choice[choice]


TOKENS: ContextVar[TokenCount | None] = ContextVar("weir_tokens", default=None)
"""The count of the response that the current task makes."""


@dataclass(slots=True)
class _Choice:
    """The tokens of one choice so far; ``first_tokens`` came at ``first_s``."""

    first_s: float = 0.0
    first_tokens: int = 0
    last_s: float = 0.0
    tokens: int = 0


class _Stream:
    """The time stamps of one response, choice by choice: they come side by side.

    An event may carry several tokens: the client asked for that (``stream_interval``), a parser
    kept them back until they meant something, or the server was late. A wait w for k of them is k
    times w / k (``MOST_SAMPLES`` times at most), so that means agree with those of the engine,
    which gave the tokens one by one: what is left between the two is a delay. Taken for one token,
    such a wait would be an objective that is missed by steps in time. The price: a pause of the
    server alone is spread over the tokens that it held up. An event without tokens of its own is
    no sample. Where nobody counts tokens, each event is one.
    """

    def __init__(self, latency: OnlineLatency, arrival_s: float) -> None:
        self._latency = latency
        self._arrival_s = arrival_s
        self._choices: dict[int | None, _Choice] = {}
        self.tokens = TokenCount()

    def event(self, body: bytes, now_s: float) -> None:
        """A part of the body was handed over at ``now_s``."""
        if not _carries_tokens(body) or self.tokens.of(None) == 0:
            return
        if not self._choices:
            self._latency.add("ttft", now_s, now_s - self._arrival_s)
        number = _choice_of(body)
        choice = self._choices.setdefault(number, _Choice())
        tokens = self.tokens.of(number)
        if tokens is None:
            if not choice.tokens and b'"role":' in body:
                return  # a chat stream opens with the roles, sent with the first token's event
            tokens = choice.tokens + 1
        new = tokens - choice.tokens
        if new <= 0:
            return
        if choice.tokens:
            wait_s = (now_s - choice.last_s) / new
            for _ in range(min(new, MOST_SAMPLES)):
                self._latency.add("tbt", now_s, wait_s)
        else:
            choice.first_s, choice.first_tokens = now_s, tokens
        choice.last_s, choice.tokens = now_s, tokens

    def end(self, now_s: float) -> None:
        """The response ended."""
        for choice in self._choices.values():
            after_first = choice.tokens - choice.first_tokens
            if after_first:
                self._latency.add("tpot", now_s, (choice.last_s - choice.first_s) / after_first)


def _choice_of(body: bytes) -> int | None:
    """The index of the choice that an event is of; None in streams that have but one."""
    found = _CHOICE.search(body)
    return int(found[1]) if found else None


def _carries_tokens(body: bytes) -> bool:
    if body.startswith(b"event: "):  # /v1/responses and /v1/messages name their events
        kind = body.split(b"\n", 1)[0]
        return kind.endswith(b"delta") and kind != b"event: message_delta"
    if not body.startswith(b"data: ") or body.startswith(b"data: [DONE]"):
        return False
    return b'"choices":[]' not in body


class LatencyProbe:
    """An ASGI layer that measures the responses that pass through it and changes nothing."""

    def __init__(
        self, app: AsgiApp, latency: OnlineLatency, *, clock: Clock = time.perf_counter
    ) -> None:
        self._app = app
        self._latency = latency
        self._clock = clock
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http" or scope["path"] not in GENERATING_PATHS:
            await self._app(scope, receive, send)
            return
        stream = _Stream(self._latency, self._clock())
        streaming = False

        async def watch(message: Message) -> None:
            nonlocal streaming
            if message["type"] == "http.response.start":
                streaming = message["status"] == 200 and _is_event_stream(message)
            elif streaming and message["type"] == "http.response.body":
                stream.event(message.get("body", b""), self._clock())
            await send(message)

        self.in_flight += 1
        token = TOKENS.set(stream.tokens)
        try:
            await self._app(scope, receive, watch)
        finally:
            TOKENS.reset(token)
            self.in_flight -= 1
            stream.end(self._clock())


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )
