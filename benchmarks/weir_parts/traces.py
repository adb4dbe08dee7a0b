"""What the variants are compared on: two machines with an online load each, and the batch work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

import numpy as np

from weir_engine.ids import RequestId
from weir_engine.sim.traces import Cut, plain_csv
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    RequestSpec,
    Turns,
    conversations,
    document_questions,
    poisson_times,
)

END_S = 140.0
DUE_S = 120.0
_DUE_EVERY = 10  # of so many documents one has a question that is due
_DOCUMENTS = Documents(
    count=600,
    questions=8,
    document=Lengths(median=2500, sigma=0.4, low=200, high=6000),
    question=Lengths(median=60, sigma=0.5, low=10, high=400),
    output=Lengths(median=120, sigma=0.5, low=8, high=500),
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One machine and one online load; ``total_blocks`` cuts its KV memory."""

    profile: str
    online: Callable[[int], tuple[RequestSpec, ...]]
    total_blocks: int | None = None


def azure(seed: int) -> tuple[RequestSpec, ...]:
    """Azure's conversations: a stretch of their own for each seed."""
    text = resources.files("weir_cli.demo").joinpath("data/azure2023_conv_excerpt.csv")
    lines = text.read_text("utf-8").splitlines()
    return Cut(start_s=END_S * (seed - 1), seconds=END_S, longest_tokens=8192).of(plain_csv(lines))


def chats(seed: int) -> tuple[RequestSpec, ...]:
    """Conversations of six turns that come back to their history."""
    rng = np.random.default_rng((seed, 60))
    turns = Turns(
        count=6,
        gap_s=12.0,
        message=Lengths(median=180, sigma=0.7, low=10, high=900),
        output=Lengths(median=120, sigma=0.6, low=8, high=400),
        longest_tokens=6000,
    )
    return conversations(rng, poisson_times(rng, rate_s=0.6, duration_s=END_S), turns=turns)


TRACES = {
    "azure": Trace(profile="rtx-pro-6000-llama-3.1-8b", online=azure),
    "chats": Trace(profile="a100-80gb-llama-3.1-8b", online=chats, total_blocks=3000),
}


def offline_of(seed: int) -> tuple[RequestSpec, ...]:
    """Documents with questions: more than the run can finish."""
    return document_questions(np.random.default_rng((seed, 61)), _DOCUMENTS)


def is_due(request_id: RequestId) -> bool:
    """True for the last question about every tenth document."""
    _, document, question = request_id.split("-")
    return int(document) % _DUE_EVERY == 0 and int(question) == _DOCUMENTS.questions - 1
