"""Schemas of arrays with millions of items are refused before a reader of vLLM ends over them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from weir_agent import sample_model

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

# xgrammar has no `multipleOf`: vLLM turns to llguidance.
EVEN = {"type": "integer", "multipleOf": 2}
TOO_MANY = 2_000_000


def read(backend: str = "auto", **asked: Any) -> str:  # noqa: ANN401 - vLLM is not typed
    """Which backend vLLM chooses for the grammar, once it has validated it."""
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(json.dumps(sample_model._tokenizer())),
        eos_token=sample_model.END,
    )
    params: Any = SamplingParams(structured_outputs=StructuredOutputsParams(**asked))
    params._validate_structured_outputs(
        SimpleNamespace(is_diffusion=False), SimpleNamespace(backend=backend), tokenizer
    )
    return str(params.structured_outputs._backend)


@pytest.fixture(autouse=True)
def installed() -> None:
    from weir_agent.vllm_bridge import item_bounds

    item_bounds.install()
    item_bounds.install()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": EVEN, "maxItems": TOO_MANY},
        {"type": "array", "items": EVEN, "minItems": TOO_MANY},
        {"type": "array", "items": EVEN, "minItems": 2e6},
        {
            "type": "object",
            "properties": {
                name: {"type": "array", "items": EVEN, "maxItems": 600_000} for name in "ab"
            },
        },
    ],
)
def test_arrays_that_take_gigabytes_to_read_are_refused(schema: dict[str, Any]) -> None:
    """Of 2,147,483,647 items, as generated schemas have them, the agent's process was aborted."""
    for given in (schema, json.dumps(schema), json.dumps(schema).replace("Items", "It\\u0065ms")):
        with pytest.raises(VLLMValidationError, match="leave them out"):
            read(json=given)


def test_what_another_reader_takes_stays() -> None:
    assert read(json={"type": "array", "maxItems": 2_147_483_647}) == "xgrammar"
    assert read(json={"type": "array", "items": EVEN, "maxItems": 1_000}) == "guidance"


def test_a_grammar_with_such_a_schema_in_it_is_refused() -> None:
    schema = json.dumps({"type": "array", "items": EVEN, "maxItems": TOO_MANY})
    with pytest.raises(VLLMValidationError, match="come to 2000000 items"):
        read("guidance", grammar=f"start: %json {schema}")


def test_an_engine_with_that_reader_refuses_what_the_other_had_validated() -> None:
    """The first grammar of an engine decides which reader compiles those of all requests."""
    from vllm.v1.structured_output import backend_guidance
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    backend: Any = object.__new__(backend_guidance.GuidanceBackend)
    backend.disable_any_whitespace = backend.disable_additional_properties = False
    schema = json.dumps({"type": "array", "maxItems": 2_147_483_647})
    with pytest.raises(VLLMValidationError, match="leave them out"):
        backend.compile_grammar(StructuredOutputOptions.JSON, schema)
