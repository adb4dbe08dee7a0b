"""Offline sets: from length samples, synthesised documents, shared-header questions, and mixtures.

All there at time 0 and shuffled by seed, so that their order shows nothing of what they share.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass, RequestId
from weir_engine.sim.trace_rows import csv_rows, json_rows
from weir_engine.sim.workload import RequestSpec, Segment

_CHARS_PER_TOKEN = 4  # of English text, for sources that give characters only


def from_lengths(lines: Iterable[str], *, name: str = "off") -> tuple[RequestSpec, ...]:
    """Requests of a CSV with ``input_tokens, output_tokens``, in its order; they share nothing.

    Those with an input or output of 0 are among them, for the caller to leave out and count.

    Raises:
        ConfigError: a column is missing or a field is no number.
    """
    return tuple(
        _offline(
            f"{name}-{row.number}",
            (Segment(key=f"{name}-{row.number}", tokens=row.count("input_tokens", smallest=0)),),
            row.count("output_tokens", smallest=0),
        )
        for row in csv_rows(lines, needs=("input_tokens", "output_tokens"))
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSize:
    """A long document that was measured: its size, and how long answers about it are."""

    tokens: int
    answer_tokens: int


def document_sizes(lines: Iterable[str]) -> tuple[DocumentSize, ...]:
    """From ``document_chars, mean_answer_chars`` of a sample of documents, at 4 characters a token.

    Raises:
        ConfigError: a column is missing or a field is no number.
    """
    return tuple(
        DocumentSize(
            tokens=max(row.count("document_chars") // _CHARS_PER_TOKEN, 1),
            answer_tokens=max(row.count("mean_answer_chars") // _CHARS_PER_TOKEN, 1),
        )
        for row in csv_rows(lines, needs=("document_chars", "mean_answer_chars"))
    )


def documents_like(
    rng: np.random.Generator,
    sizes: Sequence[DocumentSize],
    *,
    documents: int = 105,
    questions: int = 1951,
    longest_tokens: int = 1 << 30,
) -> tuple[RequestSpec, ...]:
    """Documents drawn log-normally like ``sizes``, with ``questions`` in all, spread evenly.

    The defaults are LooGLE's. A document that would not fit ``longest_tokens`` with its question
    and answer is cut.

    Raises:
        ConfigError: fewer than two sizes, or fewer questions than documents.
    """
    if len(sizes) < 2 or questions < documents:
        raise ConfigError(
            f"{len(sizes)} sizes, {documents} documents, {questions} questions: give at least two "
            "sizes and a question a document"
        )
    logs = [log(size.tokens) for size in sizes]
    middle, spread = float(np.mean(logs)), float(np.std(logs))
    made = []
    for d in range(documents):
        like = sizes[int(rng.integers(len(sizes)))]
        count = questions // documents + (d < questions % documents)
        tokens = max(round(float(np.exp(rng.normal(middle, spread)))), 1)
        for q in range(count):
            question = int(rng.integers(15, 60))
            answer = max(round(float(like.answer_tokens * rng.lognormal(0.0, 0.4))), 1)
            room = max(longest_tokens - question - answer, 1)
            name = f"off-doc-{d}-{q}"
            segments = (
                Segment(key=f"document-{d}", tokens=min(tokens, room)),
                Segment(key=name, tokens=question),
            )
            made.append(replace(_offline(name, segments, answer), group=f"document-{d}"))
    return shuffled(rng, made)


def questions_with_header(
    questions: Iterable[str], headers: Iterable[str], *, output_tokens: int = 2
) -> tuple[RequestSpec, ...]:
    """Multiple-choice questions behind the few-shot header of their subject (MMLU's form).

    Both are JSONL with ``subject, question, choices``, and the headers ``answer`` too; tokens are
    characters / 4.

    Raises:
        ConfigError: a field is missing or of another kind.
    """
    header_chars: dict[str, int] = defaultdict(int)
    for row in json_rows(headers):
        header_chars[row.text("subject")] += _chars(row.text("question"), row.items("choices"))
    made = []
    for row in json_rows(questions):
        subject = row.text("subject")
        own = _chars(row.text("question"), row.items("choices")) // _CHARS_PER_TOKEN
        name = f"off-mmlu-{row.number}"
        segments = [Segment(key=name, tokens=max(own, 1))]
        shared = header_chars.get(subject, 0) // _CHARS_PER_TOKEN
        if shared:
            segments.insert(0, Segment(key=f"subject-{subject}", tokens=shared))
        made.append(replace(_offline(name, tuple(segments), output_tokens), group=subject))
    return tuple(made)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Requests drawn from several pools, and what came out of it."""

    requests: tuple[RequestSpec, ...]
    shares: tuple[float, ...]
    density: float
    sharing: float


def sharing_of(specs: Iterable[RequestSpec]) -> float:
    """The share of prompt tokens that an earlier request has at the same place, by segments.

    It is the most that a prefix cache could serve.
    """
    seen: set[tuple[str, ...]] = set()
    total = shared = 0
    for spec in specs:
        keys: tuple[str, ...] = ()
        known = True
        for segment in spec.segments:
            keys += (segment.key,)
            known = known and keys in seen
            total += segment.tokens
            shared += segment.tokens if known else 0
            seen.add(keys)
    return shared / total if total else 0.0


def mix(
    rng: np.random.Generator,
    pools: Sequence[Sequence[RequestSpec]],
    *,
    count: int,
    density: float,
    sharing: float,
    density_of: Callable[[Sequence[RequestSpec]], float],
) -> Mixture:
    """``count`` requests of the pools in the shares that come nearest to both targets.

    ``density_of`` gives compute over memory time of a set, prefix sharing taken into account by the
    caller's model. Shares are searched on a grid of 5%, then of 1% around the best, on a sample.

    Source: BlendServe §5.1 (workloads of a given compute density and sharing from several traces).

    Raises:
        ConfigError: an empty pool.
    """
    if not pools or not all(pools):
        raise ConfigError("a pool to mix is empty: give at least one request in each")
    sample = min(count, 2000)

    def miss(shares: tuple[float, ...]) -> float:
        drawn = _draw(np.random.default_rng(0), pools, shares, sample)
        return abs(log(density_of(drawn) / density)) + abs(sharing_of(drawn) - sharing)

    best = min(_grid(len(pools), 20), key=miss)
    near = [
        shares
        for shares in _grid(len(pools), 100)
        if max(abs(a - b) for a, b in zip(shares, best, strict=True)) <= 0.04
    ]
    best = min(near, key=miss)
    requests = shuffled(rng, _draw(rng, pools, best, count))
    return Mixture(
        requests=requests,
        shares=best,
        density=density_of(requests),
        sharing=sharing_of(requests),
    )


def shuffled(rng: np.random.Generator, specs: Sequence[RequestSpec]) -> tuple[RequestSpec, ...]:
    """In an order that the seed decides."""
    return tuple(specs[int(i)] for i in rng.permutation(len(specs)))


def _grid(pools: int, steps: int) -> list[tuple[float, ...]]:
    return [
        (*(n / steps for n in counts), (steps - sum(counts)) / steps)
        for counts in product(range(steps + 1), repeat=pools - 1)
        if sum(counts) <= steps
    ]


def _draw(
    rng: np.random.Generator,
    pools: Sequence[Sequence[RequestSpec]],
    shares: Sequence[float],
    count: int,
) -> list[RequestSpec]:
    """Requests of each pool in turn, again from its start when it is used up, under new names."""
    made: list[RequestSpec] = []
    for p, (pool, share) in enumerate(zip(pools, shares, strict=True)):
        order = rng.permutation(len(pool))
        for i in range(round(share * count)):
            spec = pool[int(order[i % len(pool)])]
            name = f"off-{p}-{i}"
            # The last segment is a request's own: drawn twice, it is another question.
            own = Segment(key=name, tokens=spec.segments[-1].tokens)
            made.append(
                replace(
                    spec, id=RequestId(name), segments=(*spec.segments[:-1], own), arrival_s=0.0
                )
            )
    return made


def _offline(name: str, segments: tuple[Segment, ...], output_tokens: int) -> RequestSpec:
    return RequestSpec(
        id=RequestId(name),
        klass=RequestClass.OFFLINE,
        arrival_s=0.0,
        segments=segments,
        output_tokens=output_tokens,
    )


def _chars(question: str, choices: Sequence[object]) -> int:
    return len(question) + sum(len(str(choice)) + 3 for choice in choices) + 10
