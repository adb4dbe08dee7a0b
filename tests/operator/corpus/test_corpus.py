"""The corpus itself: large, without repetition, and one mistake a manifest."""

from __future__ import annotations

from tests.operator.corpus.manifests import BAD, good
from weir_operator.api.batchjob import BatchJobSpec
from weir_operator.api.llmservice import LLMServiceSpec


def test_the_corpus_is_large_and_without_repetition() -> None:
    names = [bad.name for bad in BAD]
    assert len(BAD) >= 60
    assert len(set(names)) == len(names)
    assert {bad.manifest["kind"] for bad in BAD} == {"LLMService", "BatchJob"}


def test_what_the_bad_ones_are_made_from_is_good() -> None:
    assert LLMServiceSpec.model_validate(good("LLMService")["spec"]).replicas == 1
    assert BatchJobSpec.model_validate(good("BatchJob")["spec"]).completion_window == "24h"


def test_every_bad_manifest_differs_from_the_good_one() -> None:
    for bad in BAD:
        before = bad.before or good(bad.manifest["kind"])
        assert bad.manifest != before, bad.name
