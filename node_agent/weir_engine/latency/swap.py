"""How long copying KV between host and device takes, beside the step that it overlaps."""

from dataclasses import dataclass

from weir_engine.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class SwapModel:
    """Seconds to copy slots, linear in their number.

    ``slot_s`` is one token's KV over the link, ``fixed_s`` what a copy costs to start.

    Raises:
        ConfigError: a negative time.

    Source: BROS §4.1: a linear model on the checkpointed KV, and iteration = max(t_exec, t_swap).
    """

    slot_s: float = 0.0
    fixed_s: float = 0.0

    def __post_init__(self) -> None:
        if self.slot_s < 0 or self.fixed_s < 0:
            raise ConfigError(
                f"swap.slot_s and swap.fixed_s are {self.slot_s} and {self.fixed_s}: give 0 or more"
            )

    def seconds(self, slots: int) -> float:
        """Copying ``slots``; 0 for none."""
        return self.fixed_s + slots * self.slot_s if slots else 0.0

    def iteration_s(self, execution_s: float, slots: int) -> float:
        """A step that copies ``slots`` while it runs: the longer of both."""
        return max(execution_s, self.seconds(slots))
