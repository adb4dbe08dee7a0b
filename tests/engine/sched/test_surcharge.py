"""What offline work costs a step by being in it, learnt from steps of different sizes."""

from collections.abc import Callable

import pytest

from weir_engine.sched.surcharge import Surcharge


def learnt(added_s: Callable[[int, int], float], steps: list[tuple[int, int]]) -> float:
    surcharge = Surcharge()
    for prompt_tokens, decodes in steps:
        surcharge.observe(prompt_tokens, decodes, added_s(prompt_tokens, decodes))
    return surcharge.seconds


MIXED = [(tokens, decodes) for tokens in (0, 16, 48, 200) for decodes in (1, 4, 9, 16)] * 10


def test_what_does_not_grow_with_tokens_is_the_surcharge() -> None:
    """Worked example: 10 ms, 0.7 ms a prompt token and 0.9 ms a decode."""
    found_s = learnt(lambda tokens, decodes: 0.010 + 7e-4 * tokens + 9e-4 * decodes, MIXED)
    assert found_s == pytest.approx(0.010, rel=0.1)


def test_dear_decodes_are_none() -> None:
    """Small steps have more decodes than prompt tokens: that they are dear is not the step's."""
    found_s = learnt(lambda tokens, decodes: 1e-4 * tokens + 5e-3 * decodes, MIXED)
    assert found_s == pytest.approx(0.0, abs=1e-4)


def test_first_tokens_that_are_free_make_none() -> None:
    """A GPU below its knee: what a step adds grows with its tokens only beyond some of them."""
    found_s = learnt(lambda tokens, decodes: 1e-4 * max(0, tokens + decodes - 64), MIXED)
    assert found_s == 0.0


def test_what_is_common_to_like_steps_is_their_tokens() -> None:
    assert learnt(lambda _tokens, _decodes: 0.02, [(0, 8)] * 100) == pytest.approx(0.0, abs=1e-6)
    assert learnt(lambda _tokens, _decodes: 0.02, [(8, 8)] * 100) == pytest.approx(0.0, abs=1e-6)


def test_few_steps_say_nothing() -> None:
    assert learnt(lambda _tokens, _decodes: 0.02, MIXED[:20]) == 0.0


def test_a_machine_that_changes_is_followed() -> None:
    surcharge = Surcharge()
    for fixed_s in (0.010, 0.002):
        for tokens, decodes in MIXED * 5:
            surcharge.observe(tokens, decodes, fixed_s + 7e-4 * (tokens + decodes))
    assert surcharge.seconds == pytest.approx(0.002, rel=0.2)
