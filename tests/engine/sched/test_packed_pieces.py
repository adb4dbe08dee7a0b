"""BROS's packing of prompts that no step takes whole: what they get, and that they get on."""

import pytest

from tests.engine.sched.mini_engine import request
from tests.engine.sched.test_priority_packing import Packed, slos


@pytest.mark.parametrize("prompt", [5, 10])
def test_a_piece_is_no_longer_than_its_prompt(prompt: int) -> None:
    """No token of A may take 5 ms, so c takes longer than a step may; but A's prompt can wait."""
    engine = Packed(slos=slos(ttft_s=1.0, tpot_s=0.005))
    engine.add(request("A", online=True, prompt=8))
    engine.add(request("c", online=False, prompt=prompt, output=1))
    plan = engine.step()
    assert [(work.request_id, work.tokens) for work in plan.work] == [("A", 8), ("c", prompt)]
    engine.run()
    assert set(engine.ended) == {"A", "c"}


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("step_tokens", [1, 4])
def test_online_requests_do_not_push_each_other_out_for_ever(
    *, paged: bool, step_tokens: int
) -> None:
    """The cache holds either, and not both until their ends; a step computes part of a prompt."""
    engine = Packed(
        blocks=4,
        max_batched_tokens=step_tokens,
        paged=paged,
        slos=slos(ttft_s=90.0, tpot_s=100.0),
    )
    engine.add(request("A", online=True, prompt=8, output=8))
    engine.add(request("B", online=True, prompt=8, output=8, at=0.001))
    engine.run()
    assert set(engine.ended) == {"A", "B"}
