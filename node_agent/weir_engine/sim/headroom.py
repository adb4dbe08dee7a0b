"""A baseline: stock priority scheduling with KV memory kept back for online requests."""

from typing_extensions import override

from weir_engine.config import EngineShape
from weir_engine.kv.manager import KvManager
from weir_engine.request import Request
from weir_engine.sim.baselines import StockDraft, StockScheduler
from weir_engine.sim.profiles import HardwareProfile


class HeadroomScheduler(StockScheduler):
    """Offline requests are admitted while they hold no more than ``offline_blocks``.

    An online request that waits preempts offline ones, or the headroom would flatter the others.

    Source: Llumnix as OmniServe §2.2 and §5.1.3 (baseline A) describe it: 80% of the KV for online.
    """

    def __init__(
        self, shape: EngineShape, kv: KvManager, *, step_tokens: int, offline_blocks: int
    ) -> None:
        super().__init__(shape, kv, step_tokens=step_tokens, fixed=True)
        self._offline_blocks = offline_blocks

    @override
    def _admit(self, draft: StockDraft, request: Request) -> bool:
        if not request.is_online:
            held = self._kv.offline_only_blocks + self._taken(draft)
            whole = draft.blocks_for(0, request.known_tokens)
            if held + whole > self._offline_blocks:
                return False
        return super()._admit(draft, request)

    def _taken(self, draft: StockDraft) -> int:
        """Blocks that the step gives to offline requests already."""
        return sum(
            blocks
            for work, blocks in draft.taken.values()
            if not self._requests[work.request_id].is_online
        )


def cpu_serving_tokens_s(
    profile: HardwareProfile, *, hosts: int, prompt_tokens: float, output_tokens: float
) -> float:
    """Tokens a second that whole requests reach on CPU hosts alone: an upper bound.

    Every token goes through all parameters at 2 TFLOP/s a host (declared: 24 cores with AVX-512),
    decodes also read their context from DRAM; batches are taken to hide everything else.
    """
    tokens = prompt_tokens + output_tokens
    dense_s = tokens * 2 * profile.model.parameters / 2e12
    context = round(prompt_tokens + output_tokens / 2)
    layers = profile.model.layers
    read_s = output_tokens * profile.cpu_attention_s(context, layers=layers)
    return hosts * tokens / (dense_s + read_s)
