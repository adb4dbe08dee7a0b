"""Figures about KV use for telemetry and reports."""

from dataclasses import dataclass

from weir_engine.ids import RequestClass
from weir_engine.request import Request


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


class HitTally:
    """Counts prefix hits as requests are admitted."""

    def __init__(self) -> None:
        self._tokens = {klass: [0, 0, 0] for klass in RequestClass}

    def admitted(self, request: Request, hit_tokens: int) -> None:
        """A request came to run and found so many tokens."""
        tokens = self._tokens[request.klass]
        if request.preemptions:
            tokens[2] += hit_tokens
        else:
            tokens[0] += request.known_tokens
            tokens[1] += hit_tokens

    def of(self, klass: RequestClass) -> HitCounts:
        """The hits of a class so far."""
        asked, hit, resumed = self._tokens[klass]
        return HitCounts(asked_tokens=asked, hit_tokens=hit, resumed_tokens=resumed)
