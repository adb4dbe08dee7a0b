"""The offline threshold and the reserve it leaves to online work. Pure functions of block counts.

The threshold bounds what offline requests pin. Evictable blocks of anyone may fill the reserve
until online needs them: they are free. It acts when a step is planned, never by a failed
allocation; lowered, it stops growth at once and preempts nobody (Echo §4.2, §5.3).
"""


def blocks_for(tokens: int, block_size_tokens: int) -> int:
    """Blocks that hold that many tokens."""
    return -(-tokens // block_size_tokens)


def threshold_blocks(*, total_blocks: int, online_demand_blocks: float) -> int:
    """The offline threshold that leaves room for a forecast online demand; 0 to ``total_blocks``.

    ``online_demand_blocks`` is mean + k standard deviations, or a quantile, of the blocks online
    holds (Echo §5.3). A part of a block counts as a whole one.
    """
    reserve = -int(-online_demand_blocks // 1)
    return min(total_blocks, max(0, total_blocks - reserve))
