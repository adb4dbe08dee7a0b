"""Prefix hits that end inside a block: which cached block a prompt goes on in.

vLLM copies a block of which a request may use the beginning only, and hands the copy to the
request; its own lookup finds whole blocks.
"""

from collections.abc import Callable, Sequence
from typing import Final

from weir_agent.vllm_bridge.queue import Block
from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.branches import PrefixBranches, Tail, shared_tokens
from weir_engine.request import Request

# A copy of a block costs a few kernels a layer, which on GPUs take as long as some ten tokens of a
# prompt: where fewer are shared, they are computed.
LEAST_COPIED_TOKENS: Final = 16

PromptTokens = Callable[[RequestId, int, int], Sequence[int]]
"""Ids of a request's tokens from one position to another; none where they do not say all."""


class SharedTails:
    """What requests share of the block behind their last whole cached one.

    ``least_tokens`` are worth a copy; with as many as a block has there are none. ``changes`` rises
    whenever ``find`` may answer something else.
    """

    def __init__(
        self,
        tokens: PromptTokens,
        *,
        block_size_tokens: int,
        total_blocks: int,
        least_tokens: int = LEAST_COPIED_TOKENS,
    ) -> None:
        self._tokens = tokens
        self.block_size_tokens = block_size_tokens
        self._least_tokens = least_tokens
        self._branches = PrefixBranches(2 * total_blocks)
        self.changes = 0
        self._leading: dict[RequestId, list[BlockHash]] = {}

    def leads(self, request: Request, computed_tokens: int) -> None:
        """A request came to run, and computes what its prompt's whole blocks lack from there."""
        first = max(1, computed_tokens // self.block_size_tokens)
        if first < len(request.block_hashes):
            self.changes += 1
            self._leading[request.id] = prefixes = request.block_hashes[first - 1 : -1]
            for prefix in prefixes:
                self._branches.expect(prefix, request.id)

    def stops(self, request_id: RequestId) -> None:
        """It runs no more."""
        for prefix in self._leading.pop(request_id, ()):
            self.changes += 1
            self._branches.expect_no_more(prefix, request_id)

    def hashed(self, request_id: RequestId, prefix: BlockHash, block: Block, index: int) -> None:
        """A request's ``index``-th block got its hash, behind such a prefix."""
        size = self.block_size_tokens
        tokens = self._tokens(request_id, index * size, (index + 1) * size)
        self.changes += 1
        self._branches.expect_no_more(prefix, request_id)
        if block.block_hash is not None and len(tokens) == size:
            self._branches.add(prefix, block, tokens)

    def version(self, prefix: BlockHash) -> int:
        """Rises whenever more is known of what goes on behind a prefix; 0: nothing is."""
        return self._branches.version(prefix)

    def find(self, request: Request, whole_blocks: int) -> tuple[Tail | None, bool]:
        """The tail behind so many blocks of the request's hit, and whether a longer one comes.

        One block at least: the hash of the first has what tells tenants apart. The last known token
        is never in it: it is always computed.
        """
        first = whole_blocks * self.block_size_tokens
        end = min(first + self.block_size_tokens, request.known_tokens - 1)
        if end - first < self._least_tokens:
            return None, False
        prefix = request.block_hashes[whole_blocks - 1]
        tokens = self._tokens(request.id, first, end)
        tail = self._branches.find(prefix, tokens)
        if tail is not None and tail.tokens < self._least_tokens:
            tail = None
        more = self._least_tokens if tail is None else tail.tokens + 1
        comes = any(
            shared_tokens(self._tokens(leader, first, end), tokens) >= more
            for leader in self._branches.leaders(prefix)
        )
        return tail, comes

    def clear(self) -> None:
        """The cache was dropped."""
        self._branches.clear()
        self._leading.clear()
