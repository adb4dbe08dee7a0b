"""When offline prompts join a batch that is full of decodes, and how large such a step is.

A step with a prompt in it takes longer than its tokens by themselves: dense kernels compute whole
tiles, and engines have graphs for decodes alone. Some sizes suit the kernels better than others,
which a latency model that is linear in tokens cannot say: so the price of each size is measured.
"""

from typing import Final

from typing_extensions import override

from weir_engine.latency.models import LatencyModel
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.listener import StepListener
from weir_engine.sched.plan import StepOutcome, StepPlan

# Prompts are gathered until one in so many of the offline decodes' slots is free. With N slots,
# steps of D seconds and answers of L tokens, waiting for a share x of the slots costs a request
# x L D / 2 N seconds of the engine, and its part of the price P of a step with prompts is P / x N:
# least at x = sqrt(2 P / L D), which is 1/16 for P = D / 5 and 100 tokens, 1/32 for 400.
_GATHERED_SLOTS: Final = 16
_TILE_TOKENS: Final = 128
# A price counts once it was seen in so many steps, and remembers about so many of them.
_LEAST_STEPS: Final = 10.0
_KEEP: Final = 0.98
# A step that took so many times what was predicted is a pause of the machine and no price: the size
# that it fell on would not be chosen again, and nothing else would ever correct it.
_PAUSE: Final = 3.0


class PromptGathering(StepListener):
    """Gathers prompts where slots are short, and sizes their steps by the prices it has measured.

    The price of prompts is what a step took beyond the predicted time of its decodes alone, over
    the tokens of its prompts, by the tiles that the whole step fills.

    Source: Weir. Tile quantisation as a reason to choose the tokens of a step: Sarathi-Serve §4.3.
    """

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._steps: dict[int, float] = {}
        self._seconds: dict[int, float] = {}
        self._tokens: dict[int, float] = {}
        self._prices: dict[int, float] = {}  # of a token, by the tiles seen often enough

    def waits(self, draft: StepDraft, free_slots: int, decodes: int) -> bool:
        """True while too few slots are free for a step with prompts, unless it has some anyway."""
        return not draft.prefill_requests and free_slots * _GATHERED_SLOTS < decodes

    def short(self, free_slots: int, decodes: int) -> bool:
        """True where slots end a step's prompts; elsewhere the more prompts a step the better."""
        return free_slots * _GATHERED_SLOTS < 2 * decodes

    def most_tokens(self, decodes: int, fitting_tokens: int) -> int:
        """Tokens of a whole step, at most those that fit, at which prompts are cheapest.

        Online and offline prompts together get one tile beside the ``decodes`` at least.
        """
        least = decodes + _TILE_TOKENS
        prices = [
            (price, tile)
            for tile, price in self._prices.items()
            if least <= tile * _TILE_TOKENS <= fitting_tokens
        ]
        return min(prices)[1] * _TILE_TOKENS if prices else fitting_tokens

    @override
    def on_commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Learns the price of a step with prompts."""
        shape = plan.shape
        prompts = shape.prefill_tokens
        if not (outcome.timed and prompts):
            return
        duration_s = outcome.ended_s - outcome.started_s
        if duration_s > _PAUSE * self._model.predict(shape):
            return
        alone = shape._replace(prefill_tokens=0, prefill_history=0.0, prefill_requests=0)
        rest_s = self._model.fixed_s if alone.is_empty else self._model.predict(alone)
        beyond_s = duration_s - rest_s
        tile = -(-shape.tokens // _TILE_TOKENS)
        self._steps[tile] = self._steps.get(tile, 0.0) * _KEEP + 1
        self._tokens[tile] = self._tokens.get(tile, 0.0) * _KEEP + prompts
        self._seconds[tile] = self._seconds.get(tile, 0.0) * _KEEP + beyond_s
        if self._steps[tile] >= _LEAST_STEPS:
            self._prices[tile] = self._seconds[tile] / self._tokens[tile]
