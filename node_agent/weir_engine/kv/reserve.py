"""The offline threshold and the reserve it leaves to online work. Pure functions of block counts.

The threshold bounds what offline requests pin. Evictable blocks of anyone may fill the reserve
until online needs them: they are free. It acts when a step is planned, never by a failed
allocation; lowered, it stops growth at once and preempts nobody (Echo §4.2, §5.3).
"""

from weir_engine.kv.view import PrefixHit


def blocks_for(tokens: int, block_size_tokens: int) -> int:
    """Blocks that hold that many tokens."""
    return -(-tokens // block_size_tokens)


def new_blocks(
    *, held_blocks: int, computed_tokens: int, new_tokens: int, block_size_tokens: int
) -> int:
    """Blocks that a running request lacks to compute ``new_tokens`` more."""
    return max(0, blocks_for(computed_tokens + new_tokens, block_size_tokens) - held_blocks)


def admission_blocks(*, hit: PrefixHit, new_tokens: int, block_size_tokens: int) -> int:
    """Blocks by which an admission lowers the free count.

    For an offline request it is also what the admission adds to the blocks pinned by offline only:
    blocks hit that somebody references are counted already, or are online's.
    """
    fresh = blocks_for(hit.tokens + new_tokens, block_size_tokens) - hit.tokens // block_size_tokens
    return fresh + hit.free_blocks


def offline_room_blocks(
    *,
    threshold_blocks: int,
    offline_only_blocks: int,
    free_blocks: int,
    online_need_blocks: int = 0,
) -> int:
    """Blocks that offline requests may still take in this step, >= 0.

    Bounded by the threshold on what offline alone pins, and by what online leaves free after the
    ``online_need_blocks`` of the same step.
    """
    below_threshold = threshold_blocks - offline_only_blocks
    left_by_online = free_blocks - online_need_blocks
    return max(0, min(below_threshold, left_by_online))


def shortage_blocks(*, online_need_blocks: int, free_blocks: int) -> int:
    """Blocks that offline requests must give back, by preemption, for online to run; >= 0."""
    return max(0, online_need_blocks - free_blocks)


def threshold_blocks(*, total_blocks: int, online_demand_blocks: float) -> int:
    """The offline threshold that leaves room for a forecast online demand; 0 to ``total_blocks``.

    ``online_demand_blocks`` is mean + k standard deviations, or a quantile, of the blocks online
    holds (Echo §5.3). A part of a block counts as a whole one.
    """
    reserve = -int(-online_demand_blocks // 1)
    return min(total_blocks, max(0, total_blocks - reserve))
