"""What an SLO tells a step, and what a step tells an SLO.

One account an objective; a step budget takes the tightest. Accounts see loads and times, never
requests or KV blocks. The values are tuples, because every step makes one of each.
"""

from math import inf
from typing import NamedTuple, Protocol


class OnlineLoad(NamedTuple):
    """The online side of the step that is being planned.

    It is planned at ``now_s`` and queued behind a step that is under way for ``busy_s`` (0 where an
    engine plans between steps). ``decoders`` online requests decode in it; ``earliest_token_s`` is
    when the one that waits longest got its last token (None without decoders).
    ``earliest_cumulative_s`` is the smallest due time of their next tokens by a TPOT objective
    (None without one; see ``Pace``).
    ``prefills`` online requests have no first token yet, those still queued included;
    ``earliest_arrival_s`` is when the first of them arrived (None without any), ``prompts_s`` how
    long online work alone takes from now until the last of them has its first token (None without
    any, and where a preempted one among them has had it), ``prompts_delay_s`` the most that offline
    work has delayed one of them by.
    ``base_s`` is the predicted median duration of the online work alone (0 without any),
    ``idle_step_s`` the fixed cost of a step (c0), ``surcharge_s`` what offline work adds to decodes
    by being in their step at all (see ``Surcharge``).
    """

    now_s: float
    busy_s: float = 0.0
    decoders: int = 0
    earliest_token_s: float | None = None
    earliest_cumulative_s: float | None = None
    prefills: int = 0
    earliest_arrival_s: float | None = None
    prompts_s: float | None = None
    prompts_delay_s: float = 0.0
    base_s: float = 0.0
    idle_step_s: float = 0.0
    surcharge_s: float = 0.0


class StepLimit(NamedTuple):
    """The longest the step may take, offline work included, as a predicted median.

    A limit at or below ``OnlineLoad.base_s`` leaves nothing for offline work. ``idle_s`` says when
    that may change although nothing arrives; None: not by waiting. ``from_savings``: the savings of
    a mean, which are not full, pay for what the step takes beyond its online work. ``tokens`` says
    how many online tokens must come before a limit that leaves nothing can leave something, while
    as many requests decode; 0: nothing is known of that.
    """

    seconds: float = inf
    reason: str = "none"
    idle_s: float | None = None
    from_savings: bool = False
    tokens: int = 0


NO_LIMIT = StepLimit()


class StepTimes(NamedTuple):
    """What became of a planned step, for the accounts.

    ``base_s`` is what the online work alone would have taken, by prediction scaled to the measured
    ``duration_s``; ``offline`` says whether offline work was in it. ``behind_s`` is how long the
    step took that it was queued behind (0 where an engine plans between steps).
    """

    ended_s: float
    duration_s: float
    base_s: float
    offline: bool
    behind_s: float = 0.0


class Account(Protocol):
    """One objective's bookkeeping. Times are seconds on the scheduler's clock."""

    def prefill_limit(self, load: OnlineLoad) -> float:
        """Longest step (predicted median) that online prefill may fill; ``inf`` if it is free.

        ``load.prompts_s``, where it is there, is how long prefill takes in the steps that were
        answered before.
        """
        ...

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """Longest step with offline work in it."""
        ...

    def prompts_share_steps(self, load: OnlineLoad) -> bool | None:
        """Whether prompts should share steps although those that end first wait for the others.

        ``load.prompts_s`` is how long all of them take then. None: it does not matter.
        """
        ...

    def on_token(self, tbt_s: float, offline_delay_s: float) -> None:
        """An online request got a token; offline work is to blame for ``offline_delay_s`` of it."""
        ...

    def on_first_token(self, ttft_s: float, offline_delay_s: float) -> None:
        """An online request got its first token; offline work caused ``offline_delay_s`` of it."""
        ...

    def on_lateness(self, late_s: float) -> None:
        """An online token came ``late_s`` after its cumulative TPOT deadline (negative: early)."""
        ...

    def on_step(self, times: StepTimes) -> None:
        """A step ended."""
        ...

    def set_client_delay(self, delay_s: float) -> None:
        """Time measured between engine and client; the threshold is lowered by it."""
        ...


class QuietAccount:
    """Does nothing on every event, allows everything: a base for accounts that watch only some."""

    def prefill_limit(self, load: OnlineLoad) -> float:  # noqa: ARG002 - part of the protocol
        """No bound."""
        return inf

    def step_limit(self, load: OnlineLoad) -> StepLimit:  # noqa: ARG002
        """No bound."""
        return NO_LIMIT

    def prompts_share_steps(self, load: OnlineLoad) -> bool | None:  # noqa: ARG002
        """Does not matter."""
        return None

    def on_token(self, tbt_s: float, offline_delay_s: float) -> None:
        """Ignored."""

    def on_first_token(self, ttft_s: float, offline_delay_s: float) -> None:
        """Ignored."""

    def on_lateness(self, late_s: float) -> None:
        """Ignored."""

    def on_step(self, times: StepTimes) -> None:
        """Ignored."""

    def set_client_delay(self, delay_s: float) -> None:
        """Ignored."""
