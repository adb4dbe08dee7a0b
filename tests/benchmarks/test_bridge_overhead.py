"""What the bridge benchmark makes of the steps that it timed."""

from __future__ import annotations

import pytest

from benchmarks.bridge_overhead import PROMPT_TOKENS, Burst, Load, burst_of, claims_of
from benchmarks.colocation.setup import BATCHED_TOKENS


def test_decoders_are_timed_without_prompts_and_without_steps_that_some_have_left() -> None:
    load = Load(clients=16, output_tokens=10, pairs=1)
    assert BATCHED_TOKENS < 16 * PROMPT_TOKENS < 2 * BATCHED_TOKENS  # two steps of prompts
    steps_s = [1.0, 1.0] + [0.1] * 8 + [0.5]  # those of the first step end before the others

    burst = burst_of(steps_s, load)

    assert burst.tbt_s == pytest.approx(0.1)
    assert burst.token_s == pytest.approx(3.3 / 160)


def test_overhead_is_the_median_pair_by_load() -> None:
    loads = {
        "": Load(clients=16, output_tokens=10, pairs=3),
        "one-client-": Load(clients=1, output_tokens=10, pairs=3),
    }
    stock = Burst(token_s=0.010, tbt_s=0.020)
    few = [Burst(token_s=0.010 * (1 + x), tbt_s=0.020 * (1 + 2 * x)) for x in (0.01, 0.02, 0.5)]
    many = [Burst(token_s=0.010 * (1 + x), tbt_s=0.020 * (1 + x)) for x in (-0.01, 0.04, 0.05)]
    measured = {"": [(stock, weir) for weir in few], "one-client-": [(stock, b) for b in many]}

    claims = {claim.id: claim for claim in claims_of(measured, loads)}

    assert claims["bridge/time-per-token"].value == pytest.approx(2)
    assert claims["bridge/mean-tbt"].value == pytest.approx(4)
    assert claims["bridge/mean-tbt"].met is False
    assert claims["bridge/one-client-time-per-token"].value == pytest.approx(4)
    assert claims["bridge/one-client-mean-tbt"].what.startswith("mean TBT")
    assert "1 client " in claims["bridge/one-client-mean-tbt"].what
