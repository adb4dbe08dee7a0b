"""BROS's cost model (§4.1): two parts fitted apart and added, and swaps beside them."""

import numpy as np
import pytest

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import BrosModel, create
from weir_engine.latency.swap import SwapModel

BETA_P, TOKEN, TOKEN_2 = 0.015, 7e-5, 2e-9
BETA_D, EACH, EACH_CONTEXT = 0.012, 6e-5, 4e-9


def shape_of(prompts: list[int], contexts: list[int]) -> StepShape:
    shape = EMPTY_SHAPE
    for context in contexts:
        shape = shape.with_decode(context)
    for prompt in prompts:
        shape = shape.with_prefill(prompt, 0)
    return shape


def truth(prompts: list[int], contexts: list[int]) -> float:
    """alpha0 * Ln + alpha1 * Ln * La + beta, once for the prefills and once for the decodes."""
    total_s, tokens, decodes = 0.0, sum(prompts), len(contexts)
    if prompts:
        total_s += BETA_P + TOKEN * tokens + TOKEN_2 * tokens * tokens
    if contexts:
        total_s += BETA_D + EACH * decodes + EACH_CONTEXT * decodes * sum(contexts)
    return total_s


def taught() -> BrosModel:
    model, rng = BrosModel(), np.random.default_rng(1)
    for i in range(400):
        prompts = [int(n) for n in rng.integers(16, 2000, size=int(rng.integers(1, 4)))]
        contexts = [int(n) for n in rng.integers(50, 2000, size=int(rng.integers(1, 128)))]
        prompts, contexts = (prompts, []) if i % 2 else ([], contexts)
        model.update(shape_of(prompts, contexts), truth(prompts, contexts))
    model.refit()
    return model


@pytest.mark.parametrize(
    ("prompts", "contexts"),
    [([300], []), ([300, 900], []), ([], [700]), ([], [700] * 90), ([250, 64], [400] * 30)],
)
def test_a_mixed_step_is_the_sum_of_both_parts(prompts: list[int], contexts: list[int]) -> None:
    """Taught by steps of one kind only, as the paper profiles."""
    predicted_s = taught().predict(shape_of(prompts, contexts))
    assert predicted_s == pytest.approx(truth(prompts, contexts), rel=0.02)


def test_mixed_steps_change_nothing_of_either_part() -> None:
    model = taught()
    before = model.coefficients
    for _ in range(300):
        model.update(shape_of([100], [100] * 8), 0.5)
    assert model.coefficients["prefill_tokens"] == pytest.approx(before["prefill_tokens"], rel=0.02)
    untaught = BrosModel()
    untaught.update(shape_of([100], [100]), 0.5)
    untaught.refit()
    assert untaught.coefficients == BrosModel().coefficients


@pytest.mark.parametrize("shape", [EMPTY_SHAPE, shape_of([80], []), shape_of([80], [300] * 5)])
def test_one_more_decode_costs_what_the_prediction_grows_by(shape: StepShape) -> None:
    model = taught()
    grown_s = model.predict(shape.with_decode(500)) - model.predict(shape)
    fixed_s = model.coefficients["decode"] if shape.is_empty else 0.0
    assert model.decode_cost(500, shape) == pytest.approx(grown_s - fixed_s)


@pytest.mark.parametrize("shape", [EMPTY_SHAPE, shape_of([80], []), shape_of([], [300] * 5)])
def test_the_most_prefill_tokens_fill_the_limit(shape: StepShape) -> None:
    model = taught()
    tokens = model.max_prefill_tokens(shape, 0, 0.1, 0.5, 4096)
    assert model.predict(shape.with_prefill(tokens, 0)) <= 0.1
    assert model.predict(shape.with_prefill(tokens + 1, 0)) > 0.1


def test_an_empty_step_costs_nothing_and_any_other_at_least_the_smaller_beta() -> None:
    model = taught()
    assert model.predict(EMPTY_SHAPE) == 0.0
    assert model.fixed_s == pytest.approx(BETA_D, rel=0.05)
    assert create("bros", model.state()).coefficients == model.coefficients


class TestSwap:
    def test_an_iteration_takes_the_longer_of_execution_and_swap(self) -> None:
        swap = SwapModel(slot_s=1e-3, fixed_s=0.01)
        assert swap.iteration_s(0.05, 0) == 0.05
        assert swap.iteration_s(0.05, 20) == 0.05
        assert swap.iteration_s(0.05, 90) == pytest.approx(0.1)
        assert swap.seconds(0) == 0.0

    def test_a_negative_time_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"swap.slot_s"):
            SwapModel(slot_s=-1.0)
