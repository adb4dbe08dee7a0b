"""Seeded requests whose prompts are computed in parts, on processors: vLLM's engine ends over them.

A step that ends within a prompt samples a token that nobody wants, and vLLM then turns the
request's generator back. Those of processors cannot be turned back: an error, and the engine's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir_agent.vllm_bridge.version import check_shapes

_installed = False


def install() -> None:
    """Have ``CPUModelRunner`` sample what it discards without a seed; a second call does nothing.

    The generator is then as if the prompt had been computed whole: parts do not change the answer.

    Raises:
        UnsupportedEngineError: it has another shape.
    """
    global _installed  # noqa: PLW0603 - once a process
    if _installed:
        return
    from vllm.v1.worker.cpu_model_runner import (  # noqa: PLC0415 - of no use on GPUs
        CPUModelRunner,
    )

    sample_tokens = CPUModelRunner.sample_tokens
    check_shapes({"CPUModelRunner.sample_tokens": (sample_tokens, ("self", "grammar_output"))})
    _installed = True

    def sample_tokens_and_spare_generators(self: Any, grammar_output: Any) -> Any:
        generators, put_aside = self.input_batch.generators, {}
        if generators:  # the sampler is given this very object
            discarded = self.discard_request_mask.np[: self.input_batch.num_reqs]
            for row in np.flatnonzero(discarded).tolist():
                if row in generators:
                    put_aside[row] = generators.pop(row)
        try:
            return sample_tokens(self, grammar_output)
        finally:
            generators.update(put_aside)

    CPUModelRunner.sample_tokens = sample_tokens_and_spare_generators
