"""What the scheduler may ask about KV blocks, whoever manages them.

The simulator and weir_torch answer with ``kv.manager.KvManager``; the vLLM bridge answers from
vLLM's own block pool. Reading only: nothing here changes a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from weir_engine.ids import BlockHash, RequestId
from weir_engine.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixHit:
    """What a request would find in the cache if it were admitted now.

    ``tokens`` is at most the known tokens - 1. Where the engine can copy a block they may end
    inside one, which is then copied; elsewhere they are a multiple of the block size.
    ``free_blocks`` of the blocks found, the copied one among them, lie in the free list: taking
    them lowers the free count like an allocation. ``comes``: a request that runs computes more of
    the block in which the hit ends.
    """

    tokens: int
    free_blocks: int
    comes: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """What an offline request lacks to be in a step, where blocks are filled from both ends.

    ``slots`` in ``blocks`` blocks were overwritten, or would be by the step; ``fresh_blocks`` of
    them must move to free blocks, since their fronts are still in use.
    """

    blocks: int = 0
    slots: int = 0
    fresh_blocks: int = 0


class KvView(Protocol):
    """The KV state that a plan is made from."""

    @property
    def total_blocks(self) -> int:
        """Blocks there are in all."""
        ...

    @property
    def free_blocks(self) -> int:
        """Blocks held by no request; cached ones are included, they can be evicted."""
        ...

    @property
    def offline_only_blocks(self) -> int:
        """Blocks that are offline's alone: what the threshold bounds.

        Referenced by offline requests, and by no online one since the block was last free.
        """
        ...

    def held_blocks(self, request_id: RequestId) -> int:
        """Blocks that the request references now; 0 for one that is not running."""
        ...

    def releasable_blocks(self, request_ids: Sequence[RequestId]) -> int:
        """Blocks that would become free if these requests were preempted now, together."""
        ...

    def hit(self, request: Request) -> PrefixHit:
        """The prefix hit that an admission now would get."""
        ...

    def held_by_online(self, request: Request, tokens: int) -> int:
        """Blocks of its hit's first ``tokens`` that online holds, up to one that it does not.

        Whoever of offline gives way, these stay held.
        """
        ...

    def next_evicted(self, blocks: int) -> frozenset[BlockHash]:
        """Hashes that would leave the cache if ``blocks`` blocks were allocated now."""
        ...


@runtime_checkable
class BothEndsView(KvView, Protocol):
    """A KV state whose private blocks can be filled from both ends (BROS §5)."""

    def claims(self, blocks: int) -> frozenset[RequestId] | None:
        """Whose blocks online would fill if it took ``blocks`` more than are free; None: too many.

        Those requests cannot be in the same step.
        """
        ...

    def missing(self, request: Request) -> Missing:
        """What an offline request lacks before it can be in a step."""
        ...
