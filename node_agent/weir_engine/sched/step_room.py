"""How much offline work a step has time for, by the latency model."""

from typing import Final

from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import StepLimit
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.graph_sizing import keep_offline_within

_MEDIAN: Final = 0.5
# A shorter piece of a prompt is not worth a place in the batch.
_LEAST_CHUNK_TOKENS: Final = 8


class StepRoom:
    """What fits into a step of a given length, in tokens and decodes."""

    def __init__(self, model: LatencyModel) -> None:
        self._model = model

    def prompt_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, upper: int
    ) -> int:
        """Tokens of a prompt, on top of so many computed ones, that fit: at most ``upper``."""
        return self._model.max_prefill_tokens(shape, computed_tokens, limit_s, _MEDIAN, upper)

    def keep_within_graphs(self, draft: StepDraft, decodes: StepShape, limit: StepLimit) -> None:
        """Sizes a step that these decodes join, before prompts fill it (see ``graph_sizing``)."""
        if self._model.graph_tokens:
            keep_offline_within(draft, self._model, decodes, limit)

    def chunk_tokens(
        self,
        draft: StepDraft,
        computed_tokens: int,
        remaining_tokens: int,
        limit_s: float,
        *,
        must_move: bool,
    ) -> int:
        """Tokens of a prompt's next chunk: 0 where too few fit, but a few if the step must move."""
        upper = min(remaining_tokens, draft.tokens_left)
        if upper < 1:
            return 0
        least = min(upper, _LEAST_CHUNK_TOKENS)
        tokens = self.prompt_tokens(draft.shape, computed_tokens, limit_s, upper)
        if tokens >= least:
            return tokens
        return least if must_move and not draft.work else 0

    def decodes(self, shape: StepShape, computed_tokens: list[int], limit_s: float) -> int:
        """How many decodes on top of so many tokens each fit, from the first on."""
        low, high = 0, len(computed_tokens)
        while low < high:
            middle = (low + high + 1) // 2
            if self.fit(shape, StepShape.of_decodes(computed_tokens[:middle]), limit_s):
                low = middle
            else:
                high = middle - 1
        return low

    def seconds(self, shape: StepShape) -> float:
        """Of a step of that shape."""
        return self._model.predict(shape)

    def fit(self, shape: StepShape, decodes: StepShape, limit_s: float) -> bool:
        """True when there is time for some decodes too."""
        return self._model.predict(shape.plus(decodes)) <= limit_s

    def prefers_prompts(
        self,
        shape: StepShape,
        decodes: StepShape,
        limit_s: float,
        tokens_left: int,
        *,
        dear: float,
        apart_s: float | None = None,
    ) -> bool:
        """True when time ends the step and a decode costs over ``dear`` tokens of a prompt.

        Asked of the step with all the ``decodes`` and a prompt of as many tokens as are left, or
        where they take ``apart_s`` in the next step of that prompt alone.
        """
        count = decodes.decode_requests
        left = tokens_left - count
        if left < 1 or not count:
            return False
        full = shape.with_prefill(left, 0)
        prompt_s = self._model.predict(full)
        decodes_s = apart_s
        if decodes_s is None:
            decodes_s = self._model.predict(full.plus(decodes)) - prompt_s
        each_s = (prompt_s - self._model.predict(shape)) / left
        return prompt_s + decodes_s > limit_s and decodes_s > dear * each_s * count
