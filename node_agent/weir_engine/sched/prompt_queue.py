"""How long the online prompts that are there still take, and what of their slack is given away.

Pure functions: seconds and counts in, seconds out.
"""

from collections.abc import Iterable
from math import ceil

from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import OnlineLoad

_MEDIAN = 0.5
# Of the slack that the prompts have a step gives no more than this share to offline work.
_SHARE_OF_SLACK = 0.25


def queue_s(  # noqa: PLR0913 - the queue and its steps
    model: LatencyModel,
    decodes: StepShape,
    queue: Iterable[tuple[int, int]],
    *,
    limit_s: float,
    step_tokens: int,
    least_steps: int = 0,
    between_s: float = 0.0,
) -> float:
    """Seconds until the last of ``queue``, (new, computed) tokens each, has its first token.

    Steps hold ``step_tokens`` of prompts at most, last ``limit_s`` at most beside ``decodes``, and
    are ``least_steps`` or more. Each but the first comes ``between_s`` after the one before.

    Source: OmniServe §3.3.3. The printed sum is over layers and modules of all unfinished prefills;
    here the model predicts it as whole steps: as many as the queue fills, and what is left over.
    """
    tokens = 0
    pairs = 0.0
    for new, computed in queue:
        tokens += new
        pairs += new * (computed + new / 2)
    if not tokens:
        return 0.0
    each = max(pairs / tokens - tokens / 2, 0.0)
    fill = model.max_prefill_tokens(
        decodes, round(each), limit_s, _MEDIAN, min(tokens, step_tokens)
    )
    fill = max(min(fill, ceil(tokens / max(least_steps, 1))), 1)
    steps, rest = divmod(tokens, fill)
    # Attention work is spread evenly over the steps.
    share = pairs / tokens
    seconds = steps * (between_s + model.predict(_beside(decodes, fill, share)))
    last_s = model.predict(_beside(decodes, rest, share)) if rest else -between_s
    return seconds + last_s


def token_s(
    model: LatencyModel,
    decodes: StepShape,
    *,
    limit_s: float,
    step_tokens: int,
    between_s: float = 0.0,
) -> float:
    """Seconds of a full step beside ``decodes`` for each of its prompt tokens.

    The next one comes ``between_s`` after it.
    """
    fill = max(model.max_prefill_tokens(decodes, 0, limit_s, _MEDIAN, step_tokens), 1)
    return (model.predict(_beside(decodes, fill, fill / 2)) + between_s) / fill


def beside_prompts_s(
    load: OnlineLoad, *, threshold_s: float, headroom_s: float, share: float = _SHARE_OF_SLACK
) -> float:
    """Seconds of offline work that a step may add while online prompts wait, 0 or more.

    No more than ``share`` of what the prompts could still wait by themselves before
    ``threshold_s``, so however many steps they take, never all of it; nor than ``share`` of what
    the delay of those present leaves of ``headroom_s``, by which offline work may delay a request
    at all: the next one to arrive has no slack of its own yet.

    Source: Weir (design: step budget; the slack is OmniServe §3.3.3's, own prefill included).
    """
    if load.prompts_s is None or load.earliest_arrival_s is None:
        return 0.0
    start_s = load.now_s + load.busy_s
    slack_s = threshold_s - (start_s - load.earliest_arrival_s) - load.prompts_s
    return max(0.0, share * min(slack_s, headroom_s - load.prompts_delay_s))


def _beside(decodes: StepShape, tokens: int, pairs_each: float) -> StepShape:
    return StepShape(
        tokens,
        tokens * pairs_each,
        1,
        decodes.decode_requests,
        decodes.decode_context,
        decodes.decode_longest,
    )
