"""BROS's comparison as data: the studies, and the arms of each."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.papers.ablation import NO_ROOM, PROMPTS_ALONE
from benchmarks.papers.bros_run import PAGED, Outcome

VLLM = ("vLLM, prompts first", "vLLM, mixed steps")
MAIN = (*VLLM, "round robin", "BROS, paged", "BROS", PAGED, "weir")
MORE = (
    "BROS, most empty block",
    "weir, TPOT alone",
    PROMPTS_ALONE,
    NO_ROOM,
    "fixed priority",
    "adaptive",
    "aimd",
)
PAIR = ("BROS", "weir")
BEST_VLLM = "vLLM"
"""Of the two arms of vLLM the one with the lower latency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One profile, some rates, ``arms`` at each; at ``more_at_s`` the further ones run too."""

    name: str
    profile: str
    rates_s: tuple[float, ...]
    seeds: int
    window_s: float = 600.0
    kv_tokens: int | None = None
    more_at_s: float | None = None
    arms: tuple[str, ...] = MAIN

    @property
    def is_main(self) -> bool:
        """Whether the paper's headlines are judged on it."""
        return self is STUDIES[0]


OPT, RTX = "a100-40gb-opt-13b-tp2", "rtx-pro-6000-llama-3.1-8b"
RATES_S = (2.0, 4.0, 6.0, 8.0)
RTX_TOKENS = 58_000
STUDIES = (
    Study(name="opt-13b", profile=OPT, rates_s=RATES_S, seeds=3, more_at_s=8.0),
    Study(name="rtx-pro-6000", profile=RTX, rates_s=RATES_S, seeds=3, kv_tokens=RTX_TOKENS),
    # What the first seconds of a run are worth, in which nothing has been measured yet.
    Study(name="opt-13b, 1 min", profile=OPT, rates_s=RATES_S, seeds=6, window_s=60.0, arms=PAIR),
    Study(
        name="rtx-pro-6000, 1 min",
        profile=RTX,
        rates_s=RATES_S,
        seeds=6,
        window_s=60.0,
        kv_tokens=RTX_TOKENS,
        arms=PAIR,
    ),
)

Arms = dict[str, Outcome]
"""What each arm came to, at one rate for one seed."""

Rates = dict[float, Arms]
"""By rate, for one seed."""
