"""How much of what a step reads of the KV cache is read by several of its requests."""

from collections.abc import Iterable, Sequence

from weir_engine.ids import BlockHash


def distinct_tokens(
    contexts: Iterable[tuple[Sequence[BlockHash], int]], block_size_tokens: int
) -> int:
    """Tokens of some requests' contexts, whole blocks that they share counted once.

    A context is the chained hashes of a request's full blocks, and how many of its tokens are
    computed; hashes beyond those do not count.
    """
    seen: set[BlockHash] = set()
    tokens = repeated = 0
    for hashes, computed_tokens in contexts:
        own = hashes[: computed_tokens // block_size_tokens]
        before = len(seen)
        seen.update(own)
        tokens += computed_tokens
        repeated += len(own) - (len(seen) - before)
    return tokens - repeated * block_size_tokens
