"""Which outputs of offline requests wait for more tokens, and with what they go out."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams

from weir_agent.vllm_bridge.bundles import Bundles


@cache
def vllm_engine() -> Any:  # noqa: ANN401 - vLLM is not typed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, while it loads
        return importlib.import_module("vllm.v1.engine")


def output(name: str, *tokens: int, **more: object) -> Any:  # noqa: ANN401
    return vllm_engine().EngineCoreOutput(request_id=name, new_token_ids=list(tokens), **more)


def handed_out(bundles: Bundles, *outputs: object) -> list[tuple[str, list[int]]]:
    batch = vllm_engine().EngineCoreOutputs(outputs=list(outputs))
    bundles.bundle({0: batch})
    return [(one.request_id, one.new_token_ids) for one in batch.outputs]


class TestBundles:
    whole = SamplingParams(max_tokens=9, output_kind=RequestOutputKind.FINAL_ONLY)

    def bundles(self, params: SamplingParams) -> Bundles:
        made = Bundles(most_tokens=3)
        made.expect("line", params)
        handed_out(made, output("line", 1))
        return made

    def test_tokens_go_out_together_and_the_last_ones_with_the_end(self) -> None:
        bundles = self.bundles(self.whole)
        other = output("chat", 7)
        assert handed_out(bundles, output("line", 2), other) == [("chat", [7])]
        assert handed_out(bundles, output("line", 3)) == []
        assert handed_out(bundles, output("line", 4)) == [("line", [2, 3, 4])]
        assert handed_out(bundles, output("line", 5)) == []
        end = output("line", 6, finish_reason=vllm_engine().FinishReason.LENGTH)
        assert handed_out(bundles, end) == [("line", [5, 6])]

    @pytest.mark.parametrize(
        "more", [{"events": []}, {"routed_experts": np.zeros(1)}, {"kv_transfer_params": {}}]
    )
    def test_an_output_that_tells_more_goes_out_with_what_was_kept(
        self, more: dict[str, object]
    ) -> None:
        bundles = self.bundles(self.whole)
        handed_out(bundles, output("line", 2))
        assert handed_out(bundles, output("line", 3, **more)) == [("line", [2, 3])]

    @pytest.mark.parametrize(
        "more",
        [
            {"stop": ["x"]},
            {"logprobs": 1},
            {"prompt_logprobs": 1},
            {"output_kind": RequestOutputKind.DELTA},
        ],
    )
    def test_requests_whose_single_outputs_matter_are_left_alone(
        self, more: dict[str, object]
    ) -> None:
        given: dict[str, Any] = {"max_tokens": 9, "output_kind": RequestOutputKind.FINAL_ONLY}
        bundles = self.bundles(SamplingParams(**given | more))
        assert handed_out(bundles, output("line", 2)) == [("line", [2])]

    def test_what_is_forgotten_leaves_nothing_behind(self) -> None:
        bundles = self.bundles(self.whole)
        handed_out(bundles, output("line", 2))
        bundles.forget("line")
        assert handed_out(bundles, output("line", 3)) == [("line", [3])]

    def test_lines_that_began_together_hand_out_their_tokens_in_turns(self) -> None:
        """In one step the process that reads them would do nothing else for a while."""
        bundles, names = Bundles(most_tokens=3), ("a", "b", "c")
        for name in names:
            bundles.expect(name, self.whole)
        handed_out(bundles, *[output(name, 0) for name in names])
        steps = [handed_out(bundles, *[output(name, step) for name in names]) for step in range(6)]
        assert steps == [
            [("c", [0])],
            [("b", [0, 1])],
            [("a", [0, 1, 2])],
            [("c", [1, 2, 3])],
            [("b", [2, 3, 4])],
            [("a", [3, 4, 5])],
        ]
