"""BlendServe's workloads: chat, long generation and exams, mixed to a density and a sharing.

Lengths are from the data folder (Azure conversations, synthetic video, MMLU); prompts without text
get content of their own. Source: BlendServe, appendix A.1; what differs is said in docs/papers.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.paper import read_rows
from weir_engine.errors import ConfigError
from weir_engine.pool.density import DensityModel
from weir_engine.pool.density_tree import Prompts

Ints = NDArray[np.int64]

SYSTEM_TOKENS = 32
"""One system prompt a source, one block: 3% of a chat prompt; Table 3 has 1% sharing for Azure."""
CHARS_A_TOKEN = 4.0
MMLU_OUTPUT_TOKENS = 2
BLOCK_TOKENS = 32
_BLOCK_BITS = 24


class Source(IntEnum):
    """Where a request's lengths come from."""

    CHAT = 0
    VIDEO = 1
    EXAM = 2


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What a workload is mixed to: compute density of the set, and compute saved by sharing."""

    density: float
    sharing: float

    @property
    def name(self) -> str:
        """As in the paper's Table 2."""
        return f"({self.density:g}, {self.sharing:.0%})"


TRACES = {
    "trace1": Mix(density=1.4, sharing=0.35),
    "trace2": Mix(density=0.9, sharing=0.35),
    "trace3": Mix(density=1.4, sharing=0.05),
    "trace4": Mix(density=0.9, sharing=0.05),
}


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The raw lengths: ``(rows, 2)`` input and output tokens; exams as subject, header, question.

    ``exam_subject`` ``(q,)`` numbers the subjects, ``header_tokens`` ``(subjects,)`` are their
    worked examples, ``question_tokens`` ``(q,)``.
    """

    chat: Ints
    video: Ints
    exam_subject: Ints
    header_tokens: Ints
    question_tokens: Ints

    @classmethod
    def read(cls, data: Path) -> Lengths:
        """From the data folder; text counts four characters a token."""
        columns = ("input_tokens", "output_tokens")
        chat = read_rows(data / "azure2023" / "conv.csv.gz", columns)
        video = read_rows(data / "video_synthetic" / "requests.csv.gz", columns)
        questions = _read_lines(data / "text" / "mmlu_questions.jsonl.gz")
        shots = _read_lines(data / "text" / "mmlu_fewshot.jsonl.gz")
        subjects = sorted({str(line["subject"]) for line in questions})
        number = {subject: i for i, subject in enumerate(subjects)}
        headers = np.zeros(len(subjects))
        for line in shots:
            if line["subject"] in number:
                headers[number[str(line["subject"])]] += _chars(line)
        return cls(
            chat=np.maximum(np.array(chat, dtype=np.int64), 1),
            video=np.maximum(np.array(video, dtype=np.int64), 1),
            exam_subject=np.array([number[str(q["subject"])] for q in questions]),
            header_tokens=np.ceil(headers / CHARS_A_TOKEN).astype(np.int64),
            question_tokens=np.array(
                [max(1, round(_chars(q) / CHARS_A_TOKEN)) for q in questions], dtype=np.int64
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests as arrays ``(n,)``, shuffled.

    A prompt is a system prompt of its ``source``, the header of its ``family`` (0 tokens but for
    exams) and ``private_tokens`` of its own.
    """

    source: Ints
    family: Ints
    system_tokens: int
    header_tokens: Ints
    private_tokens: Ints
    output_tokens: Ints
    block_tokens: int

    def __len__(self) -> int:
        return int(self.source.size)

    @property
    def prompt_tokens(self) -> Ints:
        """Length of each prompt."""
        return self.system_tokens + self.header_tokens + self.private_tokens

    @property
    def tokens(self) -> int:
        """All input and output tokens: what throughput counts."""
        return int(self.prompt_tokens.sum() + self.output_tokens.sum())

    def coarse(self, factor: int) -> Workload:
        """The same in units of ``factor`` tokens, rounded, none below one unit."""

        def units(tokens: Ints) -> Ints:
            return np.maximum((tokens + factor // 2) // factor, 1)

        return Workload(
            source=self.source,
            family=self.family,
            system_tokens=max(1, self.system_tokens // factor),
            header_tokens=np.where(self.header_tokens > 0, units(self.header_tokens), 0),
            private_tokens=units(self.private_tokens),
            # one unit comes with the last of the prompt, the others are decodes
            output_tokens=(self.output_tokens - 1 + factor // 2) // factor + 1,
            block_tokens=max(1, self.block_tokens // factor),
        )

    def prompts(self) -> Prompts:
        """The prompts' block hashes: a block belongs to the last piece that reaches into it."""
        size = self.block_tokens
        tokens = self.prompt_tokens
        blocks = tokens // size
        offsets = np.r_[0, np.cumsum(blocks)]
        at = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
        system = self.system_tokens // size
        header = np.repeat((self.system_tokens + self.header_tokens) // size, blocks)
        sources = len(Source)
        owner = np.repeat(
            sources + int(self.family.max(initial=0)) + 1 + np.arange(len(self)), blocks
        )
        owner = np.where(at < header, np.repeat(sources + self.family, blocks), owner)
        owner = np.where(at < system, np.repeat(self.source, blocks), owner)
        return Prompts(
            hashes=(owner << _BLOCK_BITS) | at,
            offsets=offsets,
            tokens=tokens,
            block_size_tokens=size,
        )


def mix(
    lengths: Lengths, to: Mix, *, requests: int, model: DensityModel, rng: np.random.Generator
) -> Workload:
    """A workload of so many requests with that density and sharing, on that device.

    The shares of the three sources solve three equations: density, sharing, number of requests.

    Raises:
        ConfigError: no mix of these sources has them.
    """
    shares = mix_shares(lengths, to, model)
    counts = np.floor(shares * requests).astype(np.int64)
    counts[int(np.argmax(counts))] += requests - int(counts.sum())
    chat = lengths.chat[rng.integers(len(lengths.chat), size=counts[Source.CHAT])]
    video = _even(lengths.video, int(counts[Source.VIDEO]), rng)
    exam = rng.integers(lengths.exam_subject.size, size=counts[Source.EXAM])
    subject = lengths.exam_subject[exam]
    order = rng.permutation(requests)
    zeros = np.zeros(len(chat) + len(video), dtype=np.int64)
    return Workload(
        source=np.repeat(np.arange(3), counts)[order],
        family=np.r_[zeros, subject + 1][order],
        system_tokens=SYSTEM_TOKENS,
        header_tokens=np.r_[zeros, lengths.header_tokens[subject]][order],
        private_tokens=np.r_[chat[:, 0], video[:, 0], lengths.question_tokens[exam]][order],
        output_tokens=np.r_[
            chat[:, 1], video[:, 1], np.full(exam.size, MMLU_OUTPUT_TOKENS, dtype=np.int64)
        ][order],
        block_tokens=BLOCK_TOKENS,
    )


def mix_shares(lengths: Lengths, to: Mix, model: DensityModel) -> NDArray[np.float64]:
    """The part of all requests that each source has, ``(3,)``.

    Raises:
        ConfigError: no mix of these sources has that density and sharing.
    """
    header = lengths.header_tokens[lengths.exam_subject]
    exam = np.stack(
        [header + lengths.question_tokens, np.full(header.size, MMLU_OUTPUT_TOKENS)], axis=1
    )
    compute, memory = np.zeros(3), np.zeros(3)
    for source, rows in ((0, lengths.chat), (1, lengths.video), (2, exam)):
        prompt, output = (rows + np.array([SYSTEM_TOKENS, 0])).T.astype(np.float64)
        compute[source] = float(model.compute_s(prompt, output).mean())
        memory[source] = float(model.memory_s(prompt, output).mean())
    nothing = np.zeros(header.size)
    saved = np.full(3, model.span_compute_s(0.0, float(SYSTEM_TOKENS)))
    shared = model.span_compute_s(nothing, SYSTEM_TOKENS + header.astype(np.float64))
    saved[Source.EXAM] = float(shared.mean())
    equations = np.stack(
        [saved - to.sharing * compute, compute - saved - to.density * memory, np.ones(3)]
    )
    shares = np.linalg.solve(equations, np.array([0.0, 0.0, 1.0]))
    if shares.min() < 0:
        raise ConfigError(
            f"no mix has density {to.density} and sharing {to.sharing}: it would need parts "
            f"{np.round(shares, 4).tolist()} of chat, video and exams"
        )
    return shares


def _even(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Rows drawn evenly by output length: few long videos carry most memory-bound work."""
    by_output = rows[np.argsort(rows[:, 1], kind="stable")]
    places = (np.arange(count) + float(rng.random())) / max(count, 1) * len(rows)
    return by_output[places.astype(np.int64)]


def _read_lines(path: Path) -> list[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _chars(question: dict[str, object]) -> int:
    choices = question["choices"]
    texts = [str(question["question"]), str(question["answer"])]
    texts += [str(choice) for choice in choices] if isinstance(choices, list) else []
    return sum(len(text) for text in texts) + 20  # labels and line ends
