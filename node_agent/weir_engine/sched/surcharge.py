"""What offline work costs a step by being in it at all, however little of it there is."""

# Over about so many steps it is known, and from so many on; it is reckoned anew each time after so
# many more.
_STEPS = 200
_FEWEST_STEPS = 24
_EACH_STEPS = 8
# Where steps hardly differ, what they have in common is taken to be their tokens': so large a share
# of the steps counts as steps without a surcharge.
_RIDGE = 0.01
_ROUNDING = 1e-9


class Surcharge:
    """The part of what offline work adds to decodes that does not grow with its tokens.

    On processors a step of ten tokens takes two or three times as long as one of one token, and
    one of a hundred but twice as long again: kernels of a few rows are cheap, and requests that
    join are told to the engine anew. On GPUs the first tokens are next to free, and it is 0. A
    plane through seconds over prompt tokens and decodes, by least squares with more weight on small
    steps, and more on those that came last.

    Source: Weir (decision 49).
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        """0 or more; 0 until enough steps are known."""
        self._steps = 0
        self._sums = [0.0] * 6  # of products of one, prompt tokens and decodes
        self._added = [0.0] * 3  # of their products with what was added

    def observe(self, prompt_tokens: int, decodes: int, added_s: float) -> None:
        """A step of online decodes took ``added_s`` longer for so much offline work."""
        tokens = prompt_tokens + decodes
        if tokens < 1:
            return
        self._steps += 1
        # The first ones count less: whoever predicted them had learnt little yet.
        kept = 1 - 1 / min(self._steps, _STEPS)
        weight = 1 / tokens
        prompts, decoded = weight * prompt_tokens, weight * decodes
        products = (
            weight,
            prompts,
            decoded,
            prompts * prompt_tokens,
            prompts * decodes,
            decoded * decodes,
        )
        self._sums = [kept * old + new for old, new in zip(self._sums, products, strict=True)]
        added = (weight * added_s, prompts * added_s, decoded * added_s)
        self._added = [kept * old + new for old, new in zip(self._added, added, strict=True)]
        if self._steps >= _FEWEST_STEPS and self._steps % _EACH_STEPS == 0:
            self.seconds = self._found_s()

    def _found_s(self) -> float:
        """The first unknown of the normal equations, by elimination of the two others."""
        one, p, d, pp, pd, dd = self._sums
        added_s, prompts_s, decodes_s = self._added
        against = _RIDGE * one
        if dd > 0:
            one, p, pp = one - d * d / dd, p - d * pd / dd, pp - pd * pd / dd
            added_s, prompts_s = added_s - d * decodes_s / dd, prompts_s - pd * decodes_s / dd
        if pp > _ROUNDING * self._sums[3]:
            one, added_s = one - p * p / pp, added_s - p * prompts_s / pp
        return max(0.0, added_s / (max(one, 0.0) + against))
