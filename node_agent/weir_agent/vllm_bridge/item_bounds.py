"""Schemas of arrays that may have millions of items: one of vLLM's readers ends over them.

llguidance, to which vLLM turns where xgrammar lacks something, lays out every item of an array that
a schema bounds, some 100 bytes each. Where memory does not suffice the whole process is aborted:
the one that serves online requests, which reads each schema first, or the engine's.
"""

from __future__ import annotations

import re
from typing import Any, Final

from vllm.exceptions import VLLMValidationError
from vllm.v1.structured_output import backend_guidance

from weir_agent.vllm_bridge.version import check_shapes

MOST_ITEMS: Final = 1_000_000
"""In all arrays of a schema together."""

_BOUND: Final = re.compile(r'"(?:min|max)Items"\s*:\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)')
_ESCAPED: Final = re.compile(r"\\u([0-9a-fA-F]{4})")

_installed = False


def install() -> None:
    """Have vLLM refuse such schemas before llguidance reads them; a second call does nothing.

    Both where a request is validated and where its grammar is compiled: which reader an engine
    has, its first grammar decides.

    Raises:
        UnsupportedEngineError: it has another shape.
    """
    global _installed  # noqa: PLW0603 - once a process
    if _installed:
        return
    serialize = backend_guidance.serialize_guidance_grammar
    parameters = (
        "request_type",
        "grammar_spec",
        "disable_any_whitespace",
        "disable_additional_properties",
    )
    check_shapes({"serialize_guidance_grammar": (serialize, parameters)})
    _installed = True

    def check_items_and_serialize(request_type: Any, grammar_spec: str, *rest: Any) -> str:
        check_items(grammar_spec)
        serialized: str = serialize(request_type, grammar_spec, *rest)
        return serialized

    backend_guidance.serialize_guidance_grammar = check_items_and_serialize


def check_items(grammar: str) -> None:
    """Adds the bounds up, in a schema or in a grammar that has some.

    Raises:
        VLLMValidationError: they come to more than ``MOST_ITEMS``.
    """
    plain = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), grammar)
    items = sum(float(bound) for bound in _BOUND.findall(plain))
    if items > MOST_ITEMS:
        raise VLLMValidationError(
            f"minItems and maxItems of the structured output come to {items:.0f} items: give at "
            f"most {MOST_ITEMS} in all, or leave them out"
        )
