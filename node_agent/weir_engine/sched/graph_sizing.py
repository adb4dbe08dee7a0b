"""Which steps stay within an engine's CUDA graphs, where it has any: beyond, each costs a launch.

Source: Weir (decisions 37 and 39).
"""

from typing import Final

from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import StepLimit
from weir_engine.sched.draft import StepDraft

_MEDIAN: Final = 0.5


def keep_online_within(draft: StepDraft, model: LatencyModel, first_tokens: int) -> None:
    """Leaves the step no more tokens than a graph has, where the first prompt in line gains by it.

    It still needs ``first_tokens``. The draft has its decodes, and no prompt yet.
    """
    if beyond_is_dear(model, draft.decode_shape, first_tokens):
        _keep_within(draft, model)


def keep_offline_within(
    draft: StepDraft, model: LatencyModel, decodes: StepShape, limit: StepLimit
) -> None:
    """Leaves the step no more tokens than a graph has, where that serves more of them.

    ``decodes`` join it before any prompt; the draft has its online work. Where savings pay for what
    offline work adds to the online decoders' steps, it costs as much in several of them, but for
    the launch. Elsewhere the tokens of a second count.
    """
    left = draft.tokens_left - decodes.decode_requests
    delayed = draft.decode_requests + draft.waiting_decodes.decode_requests
    savings_pay = limit.from_savings and delayed > 0
    shape = draft.shape.plus(decodes)
    if left > 0 and (savings_pay or serves_more_within(model, shape, limit.seconds, left)):
        _keep_within(draft, model)


def _keep_within(draft: StepDraft, model: LatencyModel) -> None:
    draft.tokens_left = min(draft.tokens_left, model.graph_tokens - draft.shape.tokens)


def beyond_is_dear(model: LatencyModel, decodes: StepShape, prompt_tokens: int) -> bool:
    """True where prompts take longer in one step beyond graphs than in several within.

    They share the steps with ``decodes``, which each of them pays for again. What fits a graph
    stays in it where there is any price beyond.
    """
    most = model.graph_tokens - decodes.decode_requests
    if most < 1:
        return False
    more_steps = -(-prompt_tokens // most) - 1
    each_s = model.fixed_s if decodes.is_empty else model.predict(decodes)
    tokens = max(prompt_tokens + decodes.decode_requests, model.graph_tokens + 1)
    return more_steps * each_s < model.beyond_graphs_s(tokens)


def serves_more_within(
    model: LatencyModel, shape: StepShape, limit_s: float, most_tokens: int
) -> bool:
    """True where a step filled with a prompt serves more tokens a second within graphs.

    Beyond them it is filled up to ``limit_s``, with ``most_tokens`` of the prompt at most.
    """
    within = model.graph_tokens - shape.tokens
    if within < 1:
        return False
    tokens = model.max_prefill_tokens(shape, 0, limit_s, _MEDIAN, most_tokens)
    if tokens <= within:
        return False
    short, long = shape.with_prefill(within, 0), shape.with_prefill(tokens, 0)
    return short.tokens * model.predict(long) > long.tokens * model.predict(short)
