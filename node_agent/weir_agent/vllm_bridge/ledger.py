"""Which class uses which block of vLLM's pool: references by class, labels for eviction.

vLLM's pool knows no requests, so the scheduler tells the ledger what each step allocated and freed.
Order of eviction belongs to ``queue``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weir_agent.vllm_bridge.queue import Block, ClassedBlockQueue
from weir_engine.errors import InvariantError
from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.block import BlockTable
from weir_engine.kv.references import ReferenceCounter
from weir_engine.kv.reuse import OnlineReuse
from weir_engine.request import Request

FindBlock = Callable[[BlockHash], Block | None]
"""The block that vLLM would hit for a hash."""

ContentHash = Callable[[Any], BlockHash]
"""The content hash out of vLLM's key for one KV group."""


class BlockLedger:
    """References of online and offline requests on the blocks of one pool.

    ``table`` has the counts, ``waiting`` those of waiting offline requests by block hash. A block
    that an online request adopts is evicted as online's until its hash is reset. ``hash_epoch``
    rises whenever blocks got a hash: readers that keep prefix hits compare it. ``reuse`` follows
    which blocks online requests find again. ``is_online`` answers for a request id.
    """

    def __init__(
        self,
        total_blocks: int,
        *,
        queue: ClassedBlockQueue,
        find: FindBlock,
        content_hash: ContentHash,
        is_online: Callable[[str], bool],
    ) -> None:
        self.table = BlockTable(total_blocks)
        self._total = total_blocks
        self._queue = queue
        self._find = find
        self.content_hash = content_hash
        self._is_online = is_online
        self._held: dict[RequestId, tuple[bool, list[int]]] = {}
        self.waiting = ReferenceCounter(self._on_references)
        self.reuse = OnlineReuse(total_blocks)
        self.hash_epoch = 0

    @property
    def offline_only_blocks(self) -> int:
        """Blocks that are offline's alone."""
        return self.table.offline_only

    def scheduled(self, output: Any, known: Mapping[str, Request], now_s: float) -> None:
        """Count what one of vLLM's scheduler outputs allocated."""
        for new in output.scheduled_new_reqs:
            self.admitted(new.req_id, new.block_ids[0], online=self._is_online(new.req_id))
            self._asked(known.get(new.req_id), now_s, again=False)
        cached = output.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is None:
                continue
            if request_id in cached.resumed_req_ids:
                self.admitted(request_id, blocks[0], online=self._is_online(request_id))
                self._asked(known.get(request_id), now_s, again=True)
            else:
                self.grew(request_id, blocks[0])

    def admitted(self, request_id: RequestId, block_ids: Sequence[int], *, online: bool) -> None:
        """A request came to run and references these blocks, prefix hits included.

        Raises:
            InvariantError: it is running already.
        """
        if request_id in self._held:
            raise InvariantError(
                f"request {request_id} holds {len(self._held[request_id][1])} blocks and was "
                f"admitted again with {len(block_ids)}"
            )
        self._held[request_id] = (online, list(block_ids))
        self.table.take_all(block_ids, online=online)
        if online:
            free = self._queue.free
            for block_id in block_ids:
                if free.label(block_id).cached:
                    free.mark_online(block_id)

    def grew(self, request_id: RequestId, block_ids: Sequence[int]) -> None:
        """A running request got these blocks besides those that it has."""
        online, held = self._held[request_id]
        held.extend(block_ids)
        self.table.take_all(block_ids, online=online)

    def released(
        self, request_id: RequestId, hashes: Sequence[BlockHash] = (), now_s: float = 0.0
    ) -> None:
        """A request gave all its blocks back; one that holds none is no error.

        ``hashes`` are those of its full blocks, the first of its prompt first.
        """
        online, held = self._held.pop(request_id, (False, ()))
        self.table.release_all(held, online=online)
        if online:
            self.reuse.left(reversed(hashes[: len(held)]), now_s)

    def hashed(self, blocks: Sequence[Block], *, online: bool) -> None:
        """These blocks hold a hash now, computed by a request of that class."""
        free, waiting = self._queue.free, self.waiting
        self.hash_epoch += 1
        for block in blocks:
            if block.block_hash is None:
                continue
            # Another block may hold the same content; only the one that is hit counts as wanted.
            block_hash = self.content_hash(block.block_hash)
            wanted = waiting.count(block_hash)
            if wanted and self._find(block_hash) is not block:
                wanted = 0
            free.mark_cached(block.block_id, online=online, references=wanted)

    def cache_was_reset(self) -> None:
        """Every hash is gone."""
        for block_id in range(self._total):
            self._queue.free.reset(block_id)
        self.reuse.clear()
        self._queue.evicted_cached += 1

    def audit(self, holdings: dict[str, list[Block]]) -> None:
        """Compare with what vLLM says each request holds. O(blocks): for tests.

        Raises:
            InvariantError: with the request and the numbers that disagree.
        """
        for request_id, blocks in holdings.items():
            mine = self._held.get(RequestId(request_id), (False, []))[1]
            theirs = [block.block_id for block in blocks]
            if mine != theirs:
                raise InvariantError(
                    f"request {request_id}: the ledger has blocks {mine}, vLLM {theirs}"
                )
        gone = [r for r, (_, held) in self._held.items() if held and r not in holdings]
        if gone:
            raise InvariantError(f"the ledger has blocks of {gone}, vLLM has none")

    def _asked(self, request: Request | None, now_s: float, *, again: bool) -> None:
        if request is not None and request.is_online:
            self.reuse.asked(request.block_hashes, now_s, again=again)

    def _on_references(self, hashes: Sequence[BlockHash]) -> None:
        for block_hash in hashes:
            block = self._find(block_hash)
            if block is not None:
                self._queue.free.set_references(block.block_id, self.waiting.count(block_hash))
