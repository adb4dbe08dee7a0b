"""Echo's pooled estimator: eqs. 6 to 8 as read, fitted to steps that follow them."""

from collections.abc import Iterator

import numpy as np
import pytest

from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import EchoModel, create

ALPHA, BETA, FLOOR, MU = 2e-9, 1e-4, 0.02, 0.4
POOLS = {2: (0.012, 1e-6, 2e-6), 16: (0.015, 2e-6, 1.5e-5)}  # batch size: constant, max, mean


def decodes(contexts: list[int]) -> StepShape:
    shape = EMPTY_SHAPE
    for context in contexts:
        shape = shape.with_decode(context)
    return shape


def truth(prompts: list[int], contexts: list[int]) -> float:
    prefill = max(sum(ALPHA * n * n + BETA * n for n in prompts), FLOOR) if prompts else 0.0
    decode = 0.0
    if contexts:
        constant, longest, mean = POOLS[len(contexts)]
        decode = constant + longest * max(contexts) + mean * sum(contexts) / len(contexts)
    return max(prefill, decode) + MU * min(prefill, decode)


def shape_of(prompts: list[int], contexts: list[int]) -> StepShape:
    shape = decodes(contexts)
    for prompt in prompts:
        shape = shape.with_prefill(prompt, 0)
    return shape


def steps(seed: int) -> Iterator[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(seed)
    for _ in range(400):
        prompts = [int(n) for n in rng.integers(10, 3000, size=int(rng.integers(0, 3)))]
        size = int(rng.choice([0, 2, 16])) if prompts else int(rng.choice([2, 16]))
        yield prompts, [int(n) for n in rng.integers(50, 4000, size=size)]


def taught(seed: int = 1) -> EchoModel:
    model = EchoModel()
    for prompts, contexts in steps(seed):
        model.update(shape_of(prompts, contexts), truth(prompts, contexts))
    model.refit()
    return model


def test_it_finds_the_formula_and_predicts_steps_that_it_has_not_seen() -> None:
    model = taught()
    errors = [abs(model.predict(shape_of(p, c)) / truth(p, c) - 1) for p, c in steps(2)]
    assert np.mean(errors) < 0.02
    assert model.coefficients["overlap"] == pytest.approx(MU, abs=0.05)
    assert model.coefficients["floor"] == pytest.approx(FLOOR, rel=0.05)


def test_a_batch_of_uneven_lengths_takes_longer_than_an_even_one() -> None:
    """Eq. 7: max pooling is what makes irregular batches cost more."""
    model = taught()
    even, uneven = decodes([1000] * 16), decodes([800] * 15 + [4000])
    assert even.decode_context == uneven.decode_context
    assert model.predict(uneven) - model.predict(even) == pytest.approx(2e-6 * 3000, rel=0.4)


def test_a_step_with_both_lies_between_the_longer_part_and_the_sum() -> None:
    """Eq. 8 as read: max + mu * min, 0 <= mu <= 1."""
    model = taught()
    prefill, decode = shape_of([800], []), decodes([2000] * 16)
    both = model.predict(shape_of([800], [2000] * 16))
    parts = model.predict(prefill), model.predict(decode)
    assert max(parts) < both < sum(parts)


def test_the_floor_is_paid_once_however_many_short_prompts_there_are() -> None:
    model = taught()
    assert model.predict(shape_of([10], [])) == model.predict(shape_of([10, 10, 10], []))


def test_the_largest_chunk_fits_and_one_token_more_does_not() -> None:
    model = taught()
    batch = decodes([1000] * 16)
    tokens = model.max_prefill_tokens(batch, 500, 0.15, 0.5, 8192)
    assert 0 < tokens < 8192
    assert model.predict(batch.with_prefill(tokens, 500)) <= 0.15
    assert model.predict(batch.with_prefill(tokens + 1, 500)) > 0.15
    assert model.max_prefill_tokens(batch, 500, 10.0, 0.5, 64) == 64
    assert model.max_prefill_tokens(batch, 500, 0.0, 0.5, 64) == 0
    assert model.max_prefill_tokens(batch, 500, 1e-4, 0.5, 64) == 0


def test_a_decode_costs_what_it_adds_and_nothing_takes_no_time() -> None:
    model = taught()
    batch = decodes([1000] * 15)
    added = model.predict(batch.with_decode(1000)) - model.predict(batch)
    assert model.decode_cost(1000, batch) == pytest.approx(max(added, 0.0))
    assert model.decode_cost(1000) >= 0
    assert model.predict(EMPTY_SHAPE) == 0.0
    assert 0 < model.fixed_s <= model.predict(decodes([1]))


def test_batch_sizes_never_seen_are_priced_like_the_nearest_smaller_one() -> None:
    model = taught()
    assert model.predict(decodes([900] * 100)) == pytest.approx(model.predict(decodes([900] * 16)))
    assert model.predict(decodes([900])) == pytest.approx(model.predict(decodes([900] * 2)))


def test_steps_of_one_kind_alone_leave_the_other_kind_at_its_defaults() -> None:
    fresh, model = EchoModel(), EchoModel()
    for _ in range(20):
        model.update(shape_of([400, 400], []), 0.05)
    model.refit()
    assert model.predict(shape_of([400, 400], [])) == pytest.approx(0.05, rel=0.02)
    assert model.predict(decodes([900])) == fresh.predict(decodes([900]))
    fresh.update(decodes([500] * 2), 0.02)
    fresh.refit()
    assert fresh.predict(shape_of([400], [])) == EchoModel().predict(shape_of([400], []))


def test_a_saved_profile_predicts_as_its_model_did() -> None:
    model = taught()
    warmed = create("echo", model.state())
    for prompts, contexts in steps(3):
        shape = shape_of(prompts, contexts)
        assert warmed.predict(shape) == model.predict(shape)


def test_what_was_found_of_prompts_outlasts_a_long_time_of_mixed_steps_only() -> None:
    """Mixed steps of more kinds than are kept push those out that prompts alone were fitted to."""
    model = taught()
    before_s = model.predict(shape_of([1500], []))
    for prefill in range(12):
        for size in (2, 16):
            for context in range(13):
                prompts, contexts = [2**prefill], [2**context] * size
                model.update(shape_of(prompts, contexts), truth(prompts, contexts))
    model.refit()
    assert model.predict(shape_of([1500], [])) == pytest.approx(before_s)
