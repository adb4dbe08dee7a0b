"""The requests that a simulation is given on the command line: traces and offline sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from weir_cli.console import err
from weir_cli.errors import CliError, ExitStatus
from weir_cli.sim.options import may_be_there, named, read_lines
from weir_engine.sim.offline_sets import (
    document_sizes,
    documents_like,
    from_lengths,
    questions_with_header,
)
from weir_engine.sim.traces import FORMATS, Cut, as_offline, coding_jsonl
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    RequestSpec,
    document_questions,
)

Specs = tuple[RequestSpec, ...]
TRACE_KINDS = (*FORMATS, "coding")
MOST_DOCUMENTS = 100_000  # with their questions they are held in memory
OFFLINE_KINDS = ("none", "synthetic", "lengths", "loogle", "mmlu", "trace")
TRACE_HELP = (
    "Online requests: [KIND:]FILE, KIND one of csv, azure, mooncake, ragpulse, coding; FILE may be "
    "compressed with gzip. Default: a bundled excerpt of Azure's conversations."
)
OFFLINE_HELP = (
    "Offline requests: none; synthetic[:DOCUMENTS]; lengths:FILE; loogle:FILE (document sizes); "
    "mmlu:QUESTIONS,HEADERS; trace:KIND:FILE."
)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Which part of a trace is replayed: see ``Cut``; ``seconds`` is simulated time."""

    seconds: float | None
    start_s: float = 0.0
    time_scale: float = 1.0
    keep: float = 1.0
    seed: int = 0


def read_trace(given: str | None, load: Load, *, longest_tokens: int) -> Specs:
    """The online requests that ``--trace`` names, cut to the load and to the model's length.

    Raises:
        CliError: the file or its rows are no trace of that kind.
    """
    with named("--trace"):
        if given is None:
            text = resources.files("weir_cli.demo").joinpath("data/azure2023_conv_excerpt.csv")
            specs = FORMATS["csv"](text.read_text("utf-8").splitlines())
        else:
            specs = _read_kind(given, load.seed, longest_tokens)
        cut = Cut(
            start_s=load.start_s,
            seconds=None if load.seconds is None else load.seconds / load.time_scale,
            time_scale=load.time_scale,
            keep=load.keep,
            longest_tokens=longest_tokens,
        )
        kept = cut.of(specs)
        whole = replace(cut, longest_tokens=sys.maxsize).of(specs)
    _say_silent("--trace", [spec for spec in specs if cut.covers(spec)])
    _say_left_out("--trace", len(whole), len(kept), longest_tokens)
    if not kept:
        raise CliError(
            "--trace: no request is left of it",
            remedy="widen --start, --seconds, --keep or --max-model-len",
            status=ExitStatus.USAGE,
        )
    return kept


def _read_kind(given: str, seed: int, longest_tokens: int) -> Specs:
    """The requests of ``[KIND:]FILE``.

    Raises:
        CliError: an unknown kind, or no such file.
    """
    kind, colon, name = given.partition(":")
    if not colon or kind not in TRACE_KINDS:
        if colon and not may_be_there(given):
            raise CliError(
                f"{kind!r} is no kind of trace, and there is no file {given}",
                remedy=f"give [KIND:]FILE, KIND one of {', '.join(TRACE_KINDS)}",
                status=ExitStatus.USAGE,
            )
        kind, name = "csv", given
    lines = read_lines(Path(name))
    if kind != "coding":
        return FORMATS[kind](lines)
    # Sessions have no absolute start: one every five minutes on average.
    rng = np.random.default_rng((seed, 20))
    sessions = sum(1 for line in lines if line.strip())
    starts = np.cumsum(rng.exponential(300.0, sessions)).tolist()
    return coding_jsonl(lines, starts_s=starts, longest_tokens=longest_tokens)


def read_offline(given: str, *, seed: int, longest_tokens: int) -> Specs:
    """The offline requests that ``--offline`` names, but for those too long or without an answer.

    Raises:
        CliError: an unknown kind, or a file that is none of that kind.
    """
    kind, _, rest = given.partition(":")
    rng = np.random.default_rng((seed, 21))
    readers: dict[str, Callable[[], Specs]] = {
        "none": lambda: (),
        "synthetic": lambda: _synthetic(rng, rest),
        "lengths": lambda: from_lengths(read_lines(Path(rest))),
        "loogle": lambda: documents_like(
            rng, document_sizes(read_lines(Path(rest))), longest_tokens=longest_tokens
        ),
        "mmlu": lambda: _mmlu(rest),
        "trace": lambda: as_offline(_read_kind(rest, seed, longest_tokens)),
    }
    if kind not in readers:
        raise CliError(
            f"--offline: {kind!r} is no kind of offline set",
            remedy=f"give one of {', '.join(OFFLINE_KINDS)}",
            status=ExitStatus.USAGE,
        )
    with named("--offline"):
        specs = readers[kind]()
    whole = tuple(spec for spec in specs if _is_work(spec))
    kept = tuple(s for s in whole if s.prompt_tokens + s.output_tokens <= longest_tokens)
    _say_silent("--offline", specs)
    _say_left_out("--offline", len(whole), len(kept), longest_tokens)
    return kept


def _say_silent(option: str, specs: Sequence[RequestSpec]) -> None:
    """Public data sets have some; there is nothing to measure about them."""
    if silent := sum(1 for spec in specs if not _is_work(spec)):
        err.print(
            f"{option}: {silent} of {len(specs)} requests are left out: their prompts or answers "
            "have no token",
            markup=False,
        )


def _is_work(spec: RequestSpec) -> bool:
    return spec.prompt_tokens > 0 and spec.output_tokens > 0


def _say_left_out(option: str, all_of_them: int, kept: int, longest_tokens: int) -> None:
    """A figure of the others alone looks like one of all."""
    if kept < all_of_them:
        err.print(
            f"{option}: {all_of_them - kept} of {all_of_them} requests are left out: with their "
            f"answers they are longer than --max-model-len, {longest_tokens} tokens",
            markup=False,
        )


def _synthetic(rng: np.random.Generator, count: str) -> Specs:
    """Documents with eight questions each.

    Raises:
        CliError: the count is none.
    """
    plain = count.isascii() and count.isdigit() and len(count) <= len(str(MOST_DOCUMENTS))
    if count and not (plain and 0 < int(count) <= MOST_DOCUMENTS):
        raise CliError(
            f"--offline synthetic:{count}: {count!r} is no number of documents",
            remedy=f"give a whole number from 1 to {MOST_DOCUMENTS}",
            status=ExitStatus.USAGE,
        )
    documents = Documents(
        count=int(count or 2000),
        questions=8,
        document=Lengths(median=2500, sigma=0.4, low=200, high=6000),
        question=Lengths(median=60, sigma=0.5, low=10, high=400),
        output=Lengths(median=120, sigma=0.5, low=8, high=500),
    )
    return document_questions(rng, documents)


def _mmlu(rest: str) -> Specs:
    """MMLU's questions behind their headers.

    Raises:
        CliError: not two files.
    """
    questions, comma, headers = rest.partition(",")
    if not comma:
        raise CliError(
            f"--offline mmlu:{rest}: it does not name two files",
            remedy="give mmlu:QUESTIONS,HEADERS",
            status=ExitStatus.USAGE,
        )
    return questions_with_header(read_lines(Path(questions)), read_lines(Path(headers)))
