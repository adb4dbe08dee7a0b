"""Clients that send load: open-loop online, closed-loop offline.

Each writes down records; none judges them. The offline feeder runs until it is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weir_cli.loadlab.records import RequestRecord, TokenEvent
from weir_cli.loadlab.streaming import HttpError, Observer, stream_completion
from weir_cli.loadlab.workload import OfflineLine, OnlineRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A server and the model to name; ``extra`` is added to every body."""

    host: str
    port: int
    model: str
    extra: Mapping[str, Any]

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        """A greedy completion request."""
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            **self.extra,
        }


CUT_OFF = "it had not ended when the load did"

Watcher: TypeAlias = Callable[[str, float], Observer]
"""Makes the observer of one online request from its name and due time."""


async def send(
    target: Target,
    name: str,
    prompt: str,
    max_tokens: int,
    *,
    due_s: float,
    observe: Observer | None = None,
) -> RequestRecord:
    """One streamed request as a record; a failure is a record with its error."""
    error: str | None = None
    events: tuple[TokenEvent, ...] = ()
    cached: int | None = None
    try:
        completion = await stream_completion(
            target.host, target.port, target.body(prompt, max_tokens), observe=observe
        )
        events, cached = completion.events, completion.cached_tokens
        received = sum(event.count for event in events)
        if received != max_tokens:
            error = f"{received} of {max_tokens} tokens"
    except (HttpError, OSError) as failure:
        error = str(failure) or type(failure).__name__
    return RequestRecord(
        name=name,
        sent_s=due_s,
        prompt_tokens=len(prompt),
        events=events,
        error=error,
        cached_tokens=cached,
    )


async def feed_online(
    target: Target,
    requests: Sequence[OnlineRequest],
    *,
    start_s: float,
    done: Callable[[RequestRecord], None],
    watch: Watcher | None = None,
) -> None:
    """Sends each request when it is due, whatever became of the others; returns when all ended.

    What was sent and has not ended when this is cancelled has failed, with the tokens that came.
    """

    async def one(request: OnlineRequest) -> None:
        due_s = start_s + request.at_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        watcher = watch(request.name, due_s) if watch else None
        came: list[TokenEvent] = []

        def observe(at_s: float, tokens: int) -> None:
            came.append(TokenEvent(at_s=at_s, count=tokens))
            if watcher is not None:
                watcher(at_s, tokens)

        try:
            record = await send(
                target,
                request.name,
                request.prompt,
                request.max_tokens,
                due_s=due_s,
                observe=observe,
            )
        except asyncio.CancelledError:
            done(
                RequestRecord(
                    name=request.name,
                    sent_s=due_s,
                    prompt_tokens=len(request.prompt),
                    events=tuple(came),
                    error=CUT_OFF,
                )
            )
            raise
        finally:
            if watcher is not None:  # who failed, or was cut off, waits no more
                watcher(time.monotonic(), 0)
        done(record)

    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(one(request))


async def feed_offline(
    target: Target,
    supply: Callable[[], OfflineLine],
    *,
    concurrency: int,
    done: Callable[[RequestRecord], None],
) -> None:
    """Keeps ``concurrency`` requests in flight, in the supply's order, until cancelled."""

    async def worker(delay_s: float) -> None:
        await asyncio.sleep(delay_s)  # keeps the order of arrival at the start
        while True:
            await send_line(target, supply(), done)

    async with asyncio.TaskGroup() as group:
        for index in range(concurrency):
            group.create_task(worker(index * 0.002))


async def send_line(
    target: Target, line: OfflineLine, done: Callable[[RequestRecord], None]
) -> None:
    """One offline line; after a failure it waits a little, so that nobody hammers a server."""
    record = await send(
        target, line.custom_id, line.prompt, line.max_tokens, due_s=time.monotonic()
    )
    done(record)
    if record.error is not None:
        await asyncio.sleep(0.2)
