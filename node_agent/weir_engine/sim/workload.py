"""Requests to simulate: when they arrive, how long they are, what prefix they share. Seeded.

Reading trace files belongs to the caller; nothing here schedules.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, isfinite, log

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass, RequestId


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A piece of a prompt; equal keys at equal places are equal tokens."""

    key: str
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSpec:
    """One request as its sender knows it; ``output_tokens`` is what the model will say.

    0 where a recorded request got no token, as one whose sender left: no simulation takes those.
    """

    id: RequestId
    klass: RequestClass
    arrival_s: float
    segments: tuple[Segment, ...]
    output_tokens: int
    group: str | None = None

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """A log-normal length, cut to a range: ``median`` tokens, ``sigma`` of the logarithm."""

    median: float
    sigma: float
    low: int = 1
    high: int = 1 << 20

    def draw(self, rng: np.random.Generator) -> int:
        """One length in tokens."""
        value = exp(log(self.median) + self.sigma * float(rng.standard_normal()))
        return min(max(round(value), self.low), self.high)


def poisson_times(rng: np.random.Generator, *, rate_s: float, duration_s: float) -> list[float]:
    """Arrival times of a Poisson process."""
    times, now_s = [], float(rng.exponential(1 / rate_s))
    while now_s < duration_s:
        times.append(now_s)
        now_s += float(rng.exponential(1 / rate_s))
    return times


def bursty_times(
    rng: np.random.Generator, *, rate_s: float, duration_s: float, burst: float, period_s: float
) -> list[float]:
    """Arrival times that alternate between bursts and calm at the same mean rate.

    In a burst the rate is ``burst`` (above 1) times the mean and lasts exponentially, a fifth of
    ``period_s`` on average; the calm between makes up for it.
    """
    share = min(0.2, 1 / burst)
    calm = (1 - burst * share) / (1 - share)
    times: list[float] = []
    start_s, bursting = 0.0, False
    while start_s < duration_s:
        length_s = float(rng.exponential(period_s * (share if bursting else 1 - share)))
        rate = rate_s * (burst if bursting else max(calm, 0.0))
        if rate > 0:
            stretch = poisson_times(rng, rate_s=rate, duration_s=length_s)
            times += [start_s + t for t in stretch if start_s + t < duration_s]
        start_s += length_s
        bursting = not bursting
    return times


def online_requests(
    rng: np.random.Generator, times: Iterable[float], *, prompt: Lengths, output: Lengths
) -> tuple[RequestSpec, ...]:
    """Online requests that share nothing."""
    return tuple(
        RequestSpec(
            id=RequestId(f"on-{i}"),
            klass=RequestClass.ONLINE,
            arrival_s=time_s,
            segments=(Segment(key=f"on-{i}", tokens=prompt.draw(rng)),),
            output_tokens=output.draw(rng),
        )
        for i, time_s in enumerate(times)
    )


def online_from_rows(
    rows: Iterable[tuple[float, int, int]], *, time_scale: float = 1.0
) -> tuple[RequestSpec, ...]:
    """Online requests from (arrival_s, input_tokens, output_tokens); times are multiplied.

    Raises:
        ConfigError: a row with a negative time or a length below 1; the message names both.
    """
    made = []
    for i, (arrival_s, input_tokens, output_tokens) in enumerate(rows):
        if not (isfinite(arrival_s) and arrival_s >= 0 and input_tokens > 0 and output_tokens > 0):
            raise ConfigError(
                f"trace row {i + 1}: arrival_s {arrival_s}, input_tokens {input_tokens}, "
                f"output_tokens {output_tokens}: give a time of 0 or more and lengths of 1 or more"
            )
        made.append(
            RequestSpec(
                id=RequestId(f"on-{i}"),
                klass=RequestClass.ONLINE,
                arrival_s=arrival_s * time_scale,
                segments=(Segment(key=f"on-{i}", tokens=input_tokens),),
                output_tokens=output_tokens,
            )
        )
    return tuple(made)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """Conversations: ``count`` turns, ``gap_s`` apart on average, over a growing history."""

    count: int
    gap_s: float
    message: Lengths
    output: Lengths
    longest_tokens: int


def conversations(
    rng: np.random.Generator, starts_s: Iterable[float], *, turns: Turns
) -> tuple[RequestSpec, ...]:
    """Online multi-turn conversations: each prompt repeats all messages and answers before it."""
    made = []
    for c, start_s in enumerate(starts_s):
        history: tuple[Segment, ...] = ()
        time_s = start_s
        for t in range(turns.count):
            name = RequestId(f"on-{c}-{t}")
            history += (Segment(key=name, tokens=turns.message.draw(rng)),)
            output = turns.output.draw(rng)
            spec = RequestSpec(
                id=name,
                klass=RequestClass.ONLINE,
                arrival_s=time_s,
                segments=history,
                output_tokens=output,
                group=f"conversation-{c}",
            )
            if spec.prompt_tokens + output > turns.longest_tokens:
                break
            made.append(spec)
            history += (Segment(key=output_key(name), tokens=output),)
            time_s += float(rng.exponential(turns.gap_s))
    return tuple(sorted(made, key=lambda spec: (spec.arrival_s, spec.id)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """Offline questions about shared documents, ``questions`` to each of ``count``."""

    count: int
    questions: int
    document: Lengths
    question: Lengths
    output: Lengths


def document_questions(
    rng: np.random.Generator, documents: Documents, *, arrival_s: float = 0.0
) -> tuple[RequestSpec, ...]:
    """An offline set, shuffled: its order shows nothing of what it shares."""
    made = []
    for d in range(documents.count):
        tokens = documents.document.draw(rng)
        for q in range(documents.questions):
            name = RequestId(f"off-{d}-{q}")
            made.append(
                RequestSpec(
                    id=name,
                    klass=RequestClass.OFFLINE,
                    arrival_s=arrival_s,
                    segments=(
                        Segment(key=f"document-{d}", tokens=tokens),
                        Segment(key=name, tokens=documents.question.draw(rng)),
                    ),
                    output_tokens=documents.output.draw(rng),
                    group=f"document-{d}",
                )
            )
    order = rng.permutation(len(made))
    return tuple(made[int(i)] for i in order)


def output_key(request_id: RequestId) -> str:
    """The segment key of a request's own output, for prompts that repeat it."""
    return f"{request_id}/output"
