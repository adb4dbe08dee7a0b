"""Puts Weir's free-block queue and ledger into vLLM's block pool, and a ``KvView`` on top.

Replaces the pool's queue after construction and listens where blocks get their hash.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_utils import get_block_hash, make_block_hash_with_group_id

from weir_agent.vllm_bridge.base import VllmScheduler
from weir_agent.vllm_bridge.kv import VllmKv
from weir_agent.vllm_bridge.ledger import BlockLedger
from weir_agent.vllm_bridge.messages import BridgeSettings
from weir_agent.vllm_bridge.queue import Block, ClassedBlockQueue
from weir_agent.vllm_bridge.tails import (
    LEAST_COPIED_TOKENS,
    PromptTokens,
    SharedTails,
)
from weir_engine.config import EngineShape
from weir_engine.ids import BlockHash
from weir_engine.kv.eviction import ClassedEviction, EvictionPolicy, LruEviction

# vLLM frees a request's blocks by its id; the pool has one group.
_GROUP = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolParts:
    """What was put into the pool."""

    queue: ClassedBlockQueue
    ledger: BlockLedger
    kv: VllmKv


def take_over_pool(
    kv_cache_manager: Any,
    *,
    block_size_tokens: int,
    eviction: EvictionPolicy,
    is_online: Callable[[str], bool],
    tokens: PromptTokens,
    partial_hits: bool,
) -> PoolParts:
    """Install the queue in a pool that no request uses yet.

    ``is_online`` and ``tokens`` answer for a request id; ``partial_hits`` as the settings have it.
    """
    pool = kv_cache_manager.block_pool
    queue = ClassedBlockQueue(
        pool.blocks,
        [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        policy=eviction,
    )
    pool.free_block_queue = queue
    suffix: bytes = make_block_hash_with_group_id(b"", _GROUP)

    def find(block_hash: BlockHash) -> Block | None:
        # The map is replaced when the cache is reset, so it is looked up each time.
        return pool.cached_block_hash_to_block.get_one_block(block_hash + suffix)  # type: ignore[operator]  # vLLM's hashes are bytes

    tables = kv_cache_manager.coordinator.single_type_managers[_GROUP].req_to_blocks
    ledger = BlockLedger(
        len(pool.blocks),
        queue=queue,
        find=find,
        content_hash=get_block_hash,
        is_online=is_online,
    )
    kv = VllmKv(
        total_blocks=len(pool.blocks) - 1,
        queue=queue,
        ledger=ledger,
        find=find,
        table=lambda request_id: tables.get(request_id, []),
        tails=SharedTails(
            tokens,
            block_size_tokens=block_size_tokens,
            total_blocks=len(pool.blocks),
            least_tokens=LEAST_COPIED_TOKENS if partial_hits else block_size_tokens,
        ),
    )
    _listen_to_hashes(pool, ledger, kv.tails, is_online)
    return PoolParts(queue=queue, ledger=ledger, kv=kv)


def shape_of(vllm: VllmScheduler) -> EngineShape:
    """What the engine can hold; vLLM's null block is none of its blocks."""
    return EngineShape(
        block_size_tokens=vllm.block_size,
        total_blocks=len(vllm.kv_cache_manager.block_pool.blocks) - 1,
        max_batched_tokens=min(
            vllm.max_num_scheduled_tokens, vllm.scheduler_config.max_num_batched_tokens
        ),
        max_seqs=min(vllm.max_num_running_reqs, vllm.max_num_active_reqs),
        max_model_len_tokens=vllm.max_model_len,
    )


def eviction_of(settings: BridgeSettings) -> EvictionPolicy:
    """The eviction order that the settings ask for."""
    if not settings.classed_eviction:
        return LruEviction()
    return ClassedEviction(guard_online=settings.guard_online)


def _listen_to_hashes(
    pool: Any,
    ledger: BlockLedger,
    tails: SharedTails,
    is_online: Callable[[str], bool],
) -> None:
    cache_full_blocks = pool.cache_full_blocks

    def cache_and_label(
        request: Any,
        blocks: list[Block],
        num_cached_blocks: int,
        num_full_blocks: int,
        **rest: Any,
    ) -> None:
        cache_full_blocks(
            request=request,
            blocks=blocks,
            num_cached_blocks=num_cached_blocks,
            num_full_blocks=num_full_blocks,
            **rest,
        )
        if num_full_blocks > num_cached_blocks:
            name = request.request_id
            ledger.hashed(blocks[num_cached_blocks:num_full_blocks], online=is_online(name))
            for index in range(max(1, num_cached_blocks), num_full_blocks):
                tails.hashed(name, request.block_hashes[index - 1], blocks[index], index)

    pool.cache_full_blocks = cache_and_label
