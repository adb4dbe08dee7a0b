"""Which steps an agent measures at start, so that a fit has every direction to learn from."""

from dataclasses import dataclass

from weir_engine.latency.features import EMPTY_SHAPE, StepShape


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileStep:
    """One step to build and time.

    ``prefills`` are (new, computed) tokens each, ``decodes`` the contexts in tokens.
    """

    prefills: tuple[tuple[int, int], ...] = ()
    decodes: tuple[int, ...] = ()

    @property
    def shape(self) -> StepShape:
        """The shape that the step has when it runs exactly as written."""
        shape = EMPTY_SHAPE
        for new_tokens, computed_tokens in self.prefills:
            shape = shape.with_prefill(new_tokens, computed_tokens)
        for context_tokens in self.decodes:
            shape = shape.with_decode(context_tokens)
        return shape


def profile_shapes(
    *, max_batched_tokens: int, max_seqs: int, max_model_len_tokens: int
) -> tuple[ProfileStep, ...]:
    """Steps from the smallest to the largest that the engine takes, each varying one thing.

    Prefills alone at geometric sizes, the same late in a long prompt, several at once; decodes by
    number and by context; mixtures.
    """
    longest = max(max_model_len_tokens - 1, 1)
    chunks = [n for n in _powers(16, max_batched_tokens) if n <= longest]
    contexts = sorted({max(longest // 8, 1), max(longest // 2, 1)})
    steps = [ProfileStep(prefills=((n, 0),)) for n in chunks]
    steps += [
        ProfileStep(prefills=((n, computed),))
        for n in chunks
        for computed in contexts
        if n + computed <= longest
    ]
    small = min(32, max_batched_tokens, longest)
    steps += [
        ProfileStep(prefills=((small, 0),) * count)
        for count in (2, 4, 8)
        if count <= max_seqs and count * small <= max_batched_tokens
    ]
    counts = [n for n in _powers(1, max_seqs) if n <= max_batched_tokens]
    steps += [ProfileStep(decodes=(context,) * n) for n in counts for context in contexts]
    steps += [
        ProfileStep(prefills=((chunk, 0),), decodes=(contexts[-1],) * n)
        for n in counts[1::2]
        for chunk in chunks[1::2]
        if n + chunk <= max_batched_tokens and n < max_seqs
    ]
    return tuple(dict.fromkeys(steps))


def _powers(start: int, limit: int) -> list[int]:
    values = [start] if start <= limit else [limit]
    while values[-1] * 2 <= limit:
        values.append(values[-1] * 2)
    return values
