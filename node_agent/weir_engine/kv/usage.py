"""Figures about KV use for telemetry and reports. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HitCounts:
    """Prefix hits of one class at first admission, in tokens.

    ``asked`` are the known tokens of the requests admitted for the first time, ``hit`` those found.
    Resumptions are counted apart: finding one's own blocks again after a preemption is no hit
    (design §3, rule 6); ``resumed`` are the tokens that were found that way.
    """

    asked_tokens: int = 0
    hit_tokens: int = 0
    resumed_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KvUsage:
    """Blocks by use at one moment: ``online`` + ``offline_only`` + ``free`` = ``total``.

    ``cached_free`` of the free ones hold a prefix. ``evicted_cached`` counts, since the start,
    prefixes that were given up.
    """

    total_blocks: int
    free_blocks: int
    cached_free_blocks: int
    online_blocks: int
    offline_only_blocks: int
    evicted_cached_blocks: int
