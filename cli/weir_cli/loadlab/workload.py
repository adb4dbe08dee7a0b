"""Requests to send: online arrivals and conversations, offline lines over shared documents.

Pure and deterministic in the seed. One character is one token (the sample model's tokenizer is
byte-level), so lengths in characters are lengths in tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

_SYLLABLES = tuple(c + v for c in "bcdfghklmnprstvw" for v in ("a", "e", "i", "o", "u", "ai"))


class OfflineOrder(StrEnum):
    """The order in which a batch client submits its lines."""

    SHUFFLED = "shuffled"
    PREFIX = "prefix"


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineRequest:
    """One online request, due ``at_s`` seconds after the start of the load."""

    name: str
    at_s: float
    prompt: str
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OfflineLine:
    """One line of a batch; ``document`` numbers the shared document its prompt starts with."""

    custom_id: str
    document: int
    prompt: str
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """A log-normal length in tokens, cut to ``[low, high]``; ``median`` before the cut."""

    median: float
    sigma: float
    low: int
    high: int

    def draw(self, source: random.Random) -> int:
        """One length."""
        drawn = source.lognormvariate(0.0, self.sigma) * self.median
        return min(self.high, max(self.low, round(drawn)))


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineShape:
    """Poisson arrivals. With ``turns`` above 1 an arrival is a conversation of that many turns.

    Each turn's prompt is the whole history plus new text, sent ``think_s`` seconds (mean,
    exponential) after the time the turn before is expected to end.
    """

    rate_per_s: float
    prompt: Lengths
    output: Lengths
    turns: int = 1
    think_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OfflineShape:
    """``lines`` requests over ``documents`` shared documents of ``document_tokens`` each."""

    lines: int
    documents: int
    document_tokens: int
    question: Lengths
    output: Lengths


def pseudo_text(source: random.Random, length: int) -> str:
    """Lower-case words of exactly ``length`` characters."""
    pieces: list[str] = []
    have = 0
    while have < length:
        word = "".join(source.choices(_SYLLABLES, k=source.randint(1, 4))) + " "
        pieces.append(word)
        have += len(word)
    return "".join(pieces)[:length]


def online_requests(shape: OnlineShape, *, seed: int, duration_s: float) -> list[OnlineRequest]:
    """All requests due within ``duration_s``, by due time; conversations are under way at 0."""
    source = random.Random(f"online {seed}")  # noqa: S311 - load, not secrets
    requests: list[OnlineRequest] = []
    at_s = -shape.turns * shape.think_s
    for arrival in count():
        at_s += source.expovariate(shape.rate_per_s / shape.turns)
        if at_s >= duration_s:
            break
        requests.extend(_conversation(shape, source, arrival, at_s))
    requests.sort(key=lambda request: request.at_s)
    return [request for request in requests if 0.0 <= request.at_s < duration_s]


def _conversation(
    shape: OnlineShape, source: random.Random, arrival: int, at_s: float
) -> Iterator[OnlineRequest]:
    history = ""
    for turn in range(shape.turns):
        history += pseudo_text(source, shape.prompt.draw(source))
        yield OnlineRequest(
            name=f"online-{arrival}-{turn}",
            at_s=at_s,
            prompt=history,
            max_tokens=shape.output.draw(source),
        )
        # The answer is not replayed into the history: its text depends on the arm that served it.
        at_s += source.expovariate(1.0 / shape.think_s) if shape.think_s else 0.0


def from_arrivals(arrivals: Sequence[tuple[float, int, int]], *, seed: int) -> list[OnlineRequest]:
    """Requests for a trace's ``(at_s, prompt_tokens, output_tokens)`` rows."""
    source = random.Random(f"trace {seed}")  # noqa: S311 - load, not secrets
    return [
        OnlineRequest(
            name=f"online-{index}",
            at_s=at_s,
            prompt=pseudo_text(source, prompt_tokens),
            max_tokens=output_tokens,
        )
        for index, (at_s, prompt_tokens, output_tokens) in enumerate(arrivals)
    ]


def offline_pass(
    shape: OfflineShape, *, seed: int, order: OfflineOrder, number: int = 0
) -> list[OfflineLine]:
    """One batch of ``shape.lines`` lines; each ``number`` asks other questions of the documents."""
    documents = _documents(shape, seed)
    source = random.Random(f"offline {seed} {number}")  # noqa: S311 - load, not secrets
    lines = [
        OfflineLine(
            custom_id=f"line-{number}-{index}",
            document=document,
            prompt=documents[document] + pseudo_text(source, shape.question.draw(source)),
            max_tokens=shape.output.draw(source),
        )
        for index, document in enumerate(_spread(shape))
    ]
    if order is OfflineOrder.SHUFFLED:
        source.shuffle(lines)
    return lines


def offline_supply(
    shape: OfflineShape, *, seed: int, order: OfflineOrder
) -> Callable[[], OfflineLine]:
    """A source of lines that never runs dry: pass after pass with fresh questions."""
    endless = (
        line
        for number in count()
        for line in offline_pass(shape, seed=seed, order=order, number=number)
    )
    return lambda: next(endless)


def _documents(shape: OfflineShape, seed: int) -> list[str]:
    source = random.Random(f"documents {seed}")  # noqa: S311 - load, not secrets
    return [pseudo_text(source, shape.document_tokens) for _ in range(shape.documents)]


def _spread(shape: OfflineShape) -> list[int]:
    """The document of each line in prefix order; families differ by at most one line."""
    return sorted(index % shape.documents for index in range(shape.lines))
