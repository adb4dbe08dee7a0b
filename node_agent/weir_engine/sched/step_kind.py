"""What a step mixes: prompts beside decodes, or each in steps of their own.

Attention kernels for decodes alone split long contexts over the GPU; beside a prompt many do not,
and a decode takes two to three times as long (``LatencyModel.mixed_s``). Where that is more than
what another step costs, prompts get one step and decodes the next.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from weir_engine.config import Metric, Slo
from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel

# Another step costs its fixed part, and its requests leave the running batch and rejoin it.
_WORTH: Final = 1.5


class StepKind(Enum):
    """Who computes in a step. Sarathi-Serve's "hybrid batch", or one phase alone."""

    HYBRID = "hybrid"
    PREFILL = "prefill"
    DECODE = "decode"


def kind_of(model: LatencyModel, decodes: StepShape, *, decodes_wait: bool) -> StepKind:
    """The kind of a step that has prompts to compute, and these decodes.

    ``decodes_wait``: the step before left decodes out. So none waits for more than one step.

    Source: Weir (decision 41).
    """
    if model.mixed_s(decodes) <= _WORTH * model.fixed_s:
        return StepKind.HYBRID
    return StepKind.DECODE if decodes_wait else StepKind.PREFILL


def counts_offline_decodes(slos: Sequence[Slo]) -> bool:
    """Whether offline prompts keep away from offline decodes for which no online decode would wait.

    False where percentiles alone bound the time between tokens: two steps must fit into each such
    time then, and dear offline decodes wait for the prompts anyway. A mean pays for the sum.

    Source: Weir (decision 45).
    """
    between_tokens = [slo for slo in slos if slo.metric is not Metric.TTFT]
    return not between_tokens or any(slo.is_mean for slo in between_tokens)
