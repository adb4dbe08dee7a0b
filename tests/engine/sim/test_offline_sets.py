"""Offline sets: what they share and how dense they are comes out as asked.

Excerpts: bigai-nlco/LooGLE sample sizes (MIT), hendrycks/test (MIT).
"""

from collections.abc import Sequence

import numpy as np
import pytest

from weir_engine.errors import ConfigError
from weir_engine.sim.offline_sets import (
    DocumentSize,
    document_sizes,
    documents_like,
    from_lengths,
    mix,
    questions_with_header,
    sharing_of,
)
from weir_engine.sim.workload import RequestSpec

LOOGLE = [
    "task,doc,document_chars,document_words,questions,mean_answer_chars",
    "longdep_qa,0,68760,11166,6,70",
    "longdep_qa,1,115286,18544,9,138",
    "shortdep_cloze,2,63146,10778,19,41",
]
HEADERS = [
    (
        '{"subject":"abstract_algebra","question":"Find all c in Z_3 such that Z_3[x]/(x^2 + c) is '
        'a field.","choices":["0","1","2","3"],"answer":"B"}'
    )
] * 5
QUESTIONS = [
    (
        '{"subject":"abstract_algebra","question":"Find the degree for the given field extension '
        'Q(sqrt(2), sqrt(3), sqrt(18)) over Q.","choices":["0","4","2","6"],"answer":"B"}'
    ),
    '{"subject":"other","question":"Why?","choices":["a","b","c","d"],"answer":"A"}',
]


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_lengths_become_requests_that_share_nothing() -> None:
    specs = from_lengths(["input_tokens,output_tokens", "2581,296", "100,0", "0,9"])
    lengths = [(spec.prompt_tokens, spec.output_tokens) for spec in specs]
    assert lengths == [(2581, 296), (100, 0), (0, 9)]
    assert sharing_of(specs) == 0.0
    with pytest.raises(ConfigError, match="row 2: input_tokens"):
        from_lengths(["input_tokens,output_tokens", "no,296"])
    with pytest.raises(ConfigError, match="row 2: output_tokens"):
        from_lengths(["input_tokens,output_tokens", "9,-1"])


def test_documents_are_drawn_like_a_sample() -> None:
    sizes = document_sizes(LOOGLE)
    assert sizes[0] == DocumentSize(tokens=17190, answer_tokens=17)
    specs = documents_like(rng(), sizes, documents=30, questions=100)
    assert len(specs) == 100
    assert len({spec.segments[0].key for spec in specs}) == 30
    mean = np.mean([spec.segments[0].tokens for spec in specs])
    assert 10_000 < mean < 35_000
    assert sharing_of(specs) == pytest.approx(0.7, abs=0.08)
    assert specs != tuple(sorted(specs, key=lambda spec: spec.id))
    again = documents_like(rng(), sizes, documents=30, questions=100)
    assert specs == again


def test_documents_are_cut_to_the_engine() -> None:
    specs = documents_like(
        rng(), document_sizes(LOOGLE), documents=5, questions=9, longest_tokens=4096
    )
    assert all(spec.prompt_tokens + spec.output_tokens <= 4096 for spec in specs)


def test_documents_need_two_sizes_and_a_question_each() -> None:
    with pytest.raises(ConfigError, match="two"):
        documents_like(rng(), document_sizes(LOOGLE[:2]))
    with pytest.raises(ConfigError, match="a question a document"):
        documents_like(rng(), document_sizes(LOOGLE), documents=5, questions=4)


def test_questions_share_the_header_of_their_subject() -> None:
    first, second = questions_with_header(QUESTIONS, HEADERS)
    assert first.segments[0].key == "subject-abstract_algebra"
    assert first.segments[0].tokens > 5 * 60 // 4
    assert len(second.segments) == 1
    assert first.output_tokens == 2


def test_a_mixture_meets_density_and_sharing() -> None:
    header = ["input_tokens,output_tokens"]
    compute = from_lengths([*header, *["2000,10"] * 50], name="c")
    memory = from_lengths([*header, *["100,4000"] * 50], name="m")
    shared = questions_with_header(QUESTIONS[:1] * 50, HEADERS * 4)

    def density(specs: Sequence[RequestSpec]) -> float:
        prompt = sum(spec.prompt_tokens for spec in specs)
        return prompt / (0.5 * sum(spec.output_tokens for spec in specs) + 1)

    found = mix(
        rng(), (compute, memory, shared), count=1000, density=1.4, sharing=0.1, density_of=density
    )
    assert found.density == pytest.approx(1.4, rel=0.15)
    assert found.sharing == pytest.approx(0.1, abs=0.04)
    assert len(found.requests) == pytest.approx(1000, abs=3)
    assert len({spec.id for spec in found.requests}) == len(found.requests)
    assert sum(found.shares) == pytest.approx(1.0)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        mix(rng(), ((),), count=1, density=1.0, sharing=0.0, density_of=lambda _: 1.0)
