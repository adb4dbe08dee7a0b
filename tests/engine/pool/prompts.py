"""Batches for the tests of BlendServe's seats: each letter of a prompt is one block."""

from collections.abc import Sequence

from weir_engine.pool.density_tree import Prompts

BLOCK_TOKENS = 10


def make_prompts(texts: Sequence[str], *, tail_tokens: int = 3) -> Prompts:
    """One prompt a text; ``tail_tokens`` more than its full blocks, 1 or more."""
    return Prompts.of(
        [
            (
                [hash(text[: at + 1]) for at in range(len(text))],
                len(text) * BLOCK_TOKENS + tail_tokens,
            )
            for text in texts
        ],
        block_size_tokens=BLOCK_TOKENS,
    )


def distinct_tokens(texts: Sequence[str], *, tail_tokens: int = 3) -> int:
    """Tokens that an unbounded cache computes: the oracle of optimal sharing."""
    prefixes = {text[: at + 1] for text in texts for at in range(len(text))}
    return len(prefixes) * BLOCK_TOKENS + tail_tokens * len(texts)


def computed_tokens(texts: Sequence[str], order: Sequence[int], *, tail_tokens: int = 3) -> int:
    """Tokens computed when only the prompt before is cached: one path, as a DFS needs."""
    total, before = 0, ""
    for at in order:
        text = texts[at]
        shared = 0
        while shared < min(len(text), len(before)) and text[shared] == before[shared]:
            shared += 1
        total += (len(text) - shared) * BLOCK_TOKENS + tail_tokens
        before = text
    return total
