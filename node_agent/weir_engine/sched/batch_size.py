"""How many requests a step may have: fixed, or doubled until something is late."""

from typing import Protocol

from weir_engine.errors import ConfigError


class BatchSize(Protocol):
    """Fills the seat "batch size"; told after each plan whether its time ran out."""

    @property
    def requests(self) -> int:
        """Requests that the next step may have, 1 or more."""
        ...

    def on_step(self, *, late: bool) -> None:
        """A plan was sent; ``late``: an online request was left out for lack of time."""
        ...


class FixedBatchSize:
    """Always the same.

    Raises:
        ConfigError: below 1.
    """

    def __init__(self, requests: int) -> None:
        if requests < 1:
            raise ConfigError(f"batch size is {requests}: give 1 or more")
        self._requests = requests

    @property
    def requests(self) -> int:
        """The size given."""
        return self._requests

    def on_step(self, *, late: bool) -> None:
        """Makes no difference."""


class DoublingBatchSize:
    """Starts at ``base``, doubles after each step in time up to ``most``, falls back when late.

    Raises:
        ConfigError: ``base`` below 1 or above ``most``.

    Source: BROS §4.2, adaptive batch sizing: B_curr starts at 128, doubles while Algorithm 1 does
    not return early (lines 11-12), and is reset to its base when the estimated iteration time
    exceeds the least residual time. ``most`` is ours: the engine's slots.
    """

    def __init__(self, *, most: int, base: int = 128) -> None:
        if not 1 <= base <= most:
            raise ConfigError(f"batch size base is {base}: give 1 to {most}, the engine's slots")
        self._base = base
        self._most = most
        self._requests = base

    @property
    def requests(self) -> int:
        """Requests that the next step may have."""
        return self._requests

    def on_step(self, *, late: bool) -> None:
        """Back to the base when late, else twice as many."""
        self._requests = self._base if late else min(2 * self._requests, self._most)
