"""Which prefixes waiting offline requests want kept, and the hits that are remembered for them."""

from weir_agent.vllm_bridge.kv import VllmKv
from weir_engine.ids import RequestId
from weir_engine.kv.references import ReferenceCounter
from weir_engine.request import Request


class WantedPrefixes:
    """Requests between their arrival (or preemption) and their admission.

    ``counts`` is the ledger's: blocks that more requests wait for are evicted later.
    """

    def __init__(self, kv: VllmKv, counts: ReferenceCounter, *, block_size_tokens: int) -> None:
        self._kv = kv
        self._counts = counts
        self._block_size = block_size_tokens

    def expect(self, request: Request) -> None:
        """It waits; online requests are not counted."""
        if not request.is_online:
            full = (request.known_tokens - 1) // self._block_size
            self._counts.add(request.id, request.block_hashes[:full])

    def forget(self, request_id: RequestId) -> None:
        """It waits no more: it was admitted, or has ended."""
        self._counts.remove(request_id)
        self._kv.forget(request_id)
