"""The thread that watches, as its listener hears of it."""

from __future__ import annotations

import asyncio
import threading
from random import Random

import kopf
import pytest
from kubernetes.aio.client import Configuration

from tests.support.waiting import eventually
from weir_operator.cluster import watch
from weir_operator.cluster.watch import Watched, WatchThread
from weir_operator.planning.kinds import LLM_SERVICE, Kind
from weir_operator.planning.types import Manifest


class Heard:
    """What a listener was told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def observed(self, kind: Kind, event: str | None, item: Manifest) -> None:
        self.told.append(f"{event} {kind.kind} {item['metadata']['name']}")

    def watching(self) -> None:
        self.told.append("watching")

    def watches_ended(self) -> None:
        self.told.append("ended")


async def test_watches_that_hang_at_their_end_are_not_heard_of_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the operator would call itself unready for ever, while their successors run."""
    began, may_end = threading.Event(), threading.Event()

    async def hangs(**_: object) -> None:
        began.set()
        await asyncio.to_thread(may_end.wait)

    monkeypatch.setattr(kopf, "operator", hangs)
    monkeypatch.setattr(watch, "STOP_WITHIN_S", 0.1)
    heard = Heard()
    watched = WatchThread(
        Configuration(),
        [Watched(kind=LLM_SERVICE)],
        heard,
        namespaces=(),
        identity="operator-0",
        random=Random(1),  # noqa: S311
    )
    watched.start()
    await asyncio.to_thread(began.wait)
    await watched.stop()
    heard.watching()  # of those that follow
    may_end.set()
    assert await asyncio.to_thread(eventually, lambda: not running("kopf"))
    await asyncio.sleep(0)
    assert heard.told == ["watching"]


def running(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())
