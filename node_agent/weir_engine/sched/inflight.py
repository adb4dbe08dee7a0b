"""Block hashes that are being computed now: whoever shares one waits for the one that leads.

Invariant 6 of the design: of requests that share a prefix not yet computed one leads.
"""

from weir_engine.errors import InvariantError
from weir_engine.ids import BlockHash, RequestId
from weir_engine.request import Request


class InflightPrefixes:
    """Hashes of full blocks that running requests will have computed soon.

    ``done`` blocks of a request leave as it advances; all leave when it stops running.
    """

    __slots__ = ("_block_size_tokens", "_counts", "_spans", "leading")

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._counts: dict[BlockHash, int] = {}
        self._spans: dict[RequestId, tuple[list[BlockHash], int]] = {}
        self.leading = self._spans.keys()  # requests that still compute blocks of their prompts

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._counts

    def start(self, request: Request, computed_tokens: int) -> None:
        """A request was admitted with ``computed_tokens`` found in the cache."""
        if not request.block_hashes:
            return
        first = computed_tokens // self._block_size_tokens
        hashes = list(request.block_hashes)
        for block_hash in hashes[first:]:
            self._counts[block_hash] = self._counts.get(block_hash, 0) + 1
        self._spans[request.id] = (hashes, first)

    def advance(self, request: Request) -> None:
        """The request's computed tokens grew."""
        span = self._spans.get(request.id)
        if span is None:
            return
        hashes, first = span
        last = min(request.computed_tokens // self._block_size_tokens, len(hashes))
        if last <= first:
            return
        self._drop(hashes[first:last])
        if last == len(hashes):
            del self._spans[request.id]
        else:
            self._spans[request.id] = (hashes, last)

    def stop(self, request_id: RequestId) -> None:
        """The request runs no more."""
        span = self._spans.pop(request_id, None)
        if span is not None:
            hashes, first = span
            self._drop(hashes[first:])

    def _drop(self, hashes: list[BlockHash]) -> None:
        for block_hash in hashes:
            count = self._counts.get(block_hash, 0) - 1
            if count < 0:
                raise InvariantError(f"hash {block_hash!r} left the in-flight set twice")
            if count:
                self._counts[block_hash] = count
            else:
                del self._counts[block_hash]
