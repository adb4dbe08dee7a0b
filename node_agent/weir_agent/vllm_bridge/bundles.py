"""Offline tokens leave the engine many at a time: nobody reads them before their line is done.

Each output costs the process that serves online requests some 20 us, several times that on slow
hosts, and an engine that makes thousands of offline tokens a second would fill it with them.
"""

from collections.abc import Mapping
from typing import Any, Final

from vllm.sampling_params import RequestOutputKind

MOST_TOKENS: Final = 16
"""So many are handed out at the latest: vLLM's counters of tokens lag by no more."""

_BESIDE_TOKENS: Final = (
    "finish_reason",
    "events",
    "new_logprobs",
    "new_prompt_logprobs_tensors",
    "new_sampling_mask",
    "routed_experts",
    "kv_transfer_params",
)
OUTPUT_FIELDS: Final = ("request_id", "new_token_ids", *_BESIDE_TOKENS)
"""What is read of vLLM's outputs here."""


class Bundles:
    """Tokens of requests that only want their whole answer, kept back until some are together.

    The first output goes out as it comes, with what it says of the prompt, and so does one that
    tells more than tokens. First bundles have sizes in turn: requests that began together would
    hand out all of theirs in one step, and the process that reads them would do nothing else.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._kept: dict[str, list[int] | None] = {}  # None: its first output has not come
        self._first_tokens: dict[str, int] = {}  # of those whose first bundle has not gone out
        self._begun = 0

    def expect(self, request_id: str, params: Any) -> None:
        """An offline request came.

        Stop strings are looked for where outputs go, and logprobs belong to single outputs: such
        requests are left alone.
        """
        if params is None or params.output_kind is not RequestOutputKind.FINAL_ONLY:
            return
        if not params.stop and params.logprobs is None and params.prompt_logprobs is None:
            self._kept[request_id] = None

    def forget(self, request_id: str) -> None:
        """It is over; tokens that were kept back belong to nobody."""
        self._kept.pop(request_id, None)
        self._first_tokens.pop(request_id, None)

    def bundle(self, outputs: Mapping[int, Any]) -> None:
        """Takes out of a step's outputs, by client, what can wait, and puts in what has waited."""
        if not self._kept:
            return
        for batch in outputs.values():
            going = [output for output in batch.outputs if not self._keeps(output)]
            if len(going) < len(batch.outputs):
                batch.outputs = going

    def _keeps(self, output: Any) -> bool:
        if output.request_id not in self._kept:
            return False
        kept = self._kept[output.request_id]
        if kept is None:
            self._kept[output.request_id] = []
            self._first_tokens[output.request_id] = (
                self._most_tokens - self._begun % self._most_tokens
            )
            self._begun += 1
            return False
        together = [*kept, *output.new_token_ids]
        plain = all(getattr(output, name) is None for name in _BESIDE_TOKENS)
        enough = self._first_tokens.get(output.request_id, self._most_tokens)
        if plain and len(together) < enough:
            self._kept[output.request_id] = together
            return True
        output.new_token_ids = together
        self._kept[output.request_id] = []
        self._first_tokens.pop(output.request_id, None)
        return False
