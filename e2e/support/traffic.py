"""Online requests one after another, and what became of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from openai import OpenAI, OpenAIError

PAUSE_S = 0.3
TOKENS = 24
NEW_CONNECTION = {"Connection": "close"}  # else one pod would get them all


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A request that was not answered; ``at_s`` is the monotonic time at which that was known."""

    at_s: float
    error: str


class CutError(OpenAIError):
    """A stream ended before its answer did."""


def chat(client: OpenAI, model: str) -> str:
    """The answer to one question, streamed as applications ask for it.

    Raises:
        CutError: the stream ended before the answer did.
        OpenAIError: no answer, or a connection that broke.
    """
    events = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "How are you?"}],
        max_tokens=TOKENS,
        stream=True,
        extra_headers=NEW_CONNECTION,
    )
    choices = [choice for event in events for choice in event.choices]
    if not choices or choices[-1].finish_reason is None:
        raise CutError(f"the stream ended after {len(choices)} parts without a reason")
    return "".join(choice.delta.content or "" for choice in choices)


class Traffic:
    """Asks one endpoint for as long as it runs."""

    def __init__(self, url: str, model: str) -> None:
        """``url`` is a base URL with its ``/v1``; nothing is asked yet."""
        self.answers = 0
        self.failures: list[Failure] = []
        self._url = url
        self._model = model
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"online {url}", daemon=True)

    @contextmanager
    def running(self) -> Iterator[Traffic]:
        """Asks while the block runs."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def failures_outside(self, begin_s: float, end_s: float) -> list[Failure]:
        """The failures before and after a span of monotonic time."""
        return [failed for failed in self.failures if not begin_s <= failed.at_s <= end_s]

    def _run(self) -> None:
        with OpenAI(base_url=self._url, api_key="unused", max_retries=0, timeout=60) as client:
            while not self._ended.wait(PAUSE_S):
                try:
                    chat(client, self._model)
                except OpenAIError as error:
                    cause = f" ({error.__cause__!r})" if error.__cause__ else ""
                    self.failures.append(Failure(at_s=time.monotonic(), error=f"{error!r}{cause}"))
                else:
                    self.answers += 1
