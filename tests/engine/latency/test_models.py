"""Latency models: they find the truth, never reward more work, and survive bad data."""

from collections.abc import Callable
from functools import cache
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import AttentionModel, FittedModel, HygenModel, create
from weir_engine.latency.profile import profile_shapes

TRUTH = {
    AttentionModel.name: (6e-3, 3e-4, 8e-8, 5e-4, 4e-4, 9e-7, 1e-7),
    HygenModel.name: (6e-3, 3e-4, 9e-7, 5e-8, 2e-13, 5e-4, 4e-4),
}
NAMES = sorted(TRUTH)

counts = st.integers(0, 256)
shapes = st.builds(
    StepShape,
    prefill_tokens=st.integers(1, 8192),
    prefill_history=st.floats(0, 1e8),
    prefill_requests=st.integers(1, 64),
    decode_requests=counts,
    decode_context=st.integers(0, 1 << 20),
)
extras = st.builds(
    StepShape,
    prefill_tokens=st.integers(0, 512),
    prefill_history=st.floats(0, 1e6),
    prefill_requests=st.integers(0, 4),
    decode_requests=st.integers(0, 8),
    decode_context=st.integers(0, 10_000),
)


def random_shapes(count: int, seed: int = 1) -> list[StepShape]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        shape = EMPTY_SHAPE
        for _ in range(int(rng.integers(0, 4))):
            shape = shape.with_prefill(int(rng.integers(2, 400)), int(rng.integers(0, 3000)))
        for _ in range(int(rng.integers(0 if shape.prefill_requests else 1, 40))):
            shape = shape.with_decode(int(rng.integers(10, 4000)))
        made.append(shape)
    return made


def truth_of(name: str) -> Callable[[StepShape], float]:
    oracle = create(name)

    def seconds(shape: StepShape) -> float:
        return float(np.dot(oracle.features(shape), TRUTH[name]))

    return seconds


def worst_error(model: FittedModel, seconds: Callable[[StepShape], float], seed: int = 99) -> float:
    return max(abs(model.predict(s) / seconds(s) - 1) for s in random_shapes(200, seed))


def taught(name: str, count: int = 1000, noise: float = 0.0, seed: int = 1) -> FittedModel:
    model, seconds, rng = create(name), truth_of(name), np.random.default_rng(seed)
    for shape in random_shapes(count, seed):
        model.update(shape, seconds(shape) * float(rng.lognormal(0.0, noise)))
    return model


@pytest.mark.parametrize("name", NAMES)
def test_noiseless_steps_give_the_true_seconds_on_unseen_shapes(name: str) -> None:
    model = taught(name)
    assert worst_error(model, truth_of(name)) < 0.005
    fitted = list(model.coefficients.values())
    assert fitted[:2] == pytest.approx(TRUTH[name][:2], rel=0.05)  # c0 and the cost of a token


def test_what_decodes_cost_beside_a_prompt_is_believed_after_some_hundred_steps() -> None:
    decodes = StepShape.of_decodes([2_000] * 100)
    price = TRUTH[AttentionModel.name][-1]
    assert taught(AttentionModel.name, 200, 0.05).mixed_s(decodes) == 0.0
    learnt = taught(AttentionModel.name, 1_000, 0.05)
    assert learnt.mixed_s(decodes) == pytest.approx(price * decodes.decode_context, rel=0.3)
    beside = decodes.with_prefill(512, 0)
    apart = learnt.predict(decodes) + learnt.predict(EMPTY_SHAPE.with_prefill(512, 0))
    together = learnt.predict(beside) + learnt.fixed_s
    assert together - apart == pytest.approx(learnt.mixed_s(decodes))


def test_a_saved_price_is_believed_at_once() -> None:
    decodes = StepShape.of_decodes([2_000] * 100)
    learnt = taught(AttentionModel.name, 1_000)
    again = create(AttentionModel.name, learnt.state())
    assert again.mixed_s(decodes) == pytest.approx(learnt.mixed_s(decodes))


@pytest.mark.parametrize("name", NAMES)
def test_ten_percent_noise_averages_out(name: str) -> None:
    assert worst_error(taught(name, noise=0.1), truth_of(name)) < 0.08


@pytest.mark.parametrize("name", NAMES)
def test_one_step_in_twenty_ten_times_too_long_changes_little(name: str) -> None:
    model, seconds, rng = create(name), truth_of(name), np.random.default_rng(5)
    for shape in random_shapes(1000):
        stretch = 10.0 if rng.random() < 0.05 else float(rng.lognormal(0.0, 0.05))
        model.update(shape, seconds(shape) * stretch)
    assert worst_error(model, seconds) < 0.08


@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_equal_steps_neither_explode_nor_forget_the_profile(name: str) -> None:
    model, seconds, rng = taught(name, 400), truth_of(name), np.random.default_rng(3)
    same = EMPTY_SHAPE.with_decode(700).with_decode(900)
    for _ in range(2500):
        model.update(same, seconds(same) * float(rng.lognormal(0.0, 0.05)))
    assert model.predict(same) == pytest.approx(seconds(same), rel=0.03)
    assert worst_error(model, seconds) < 0.15


@pytest.mark.parametrize("name", NAMES)
def test_collinear_steps_scale_the_whole_model_to_the_machine(name: str) -> None:
    """Only one mixture was seen, on a machine ten times as fast as the default says."""
    model = create(name)
    before = create(name)
    for i in range(1, 400):
        n = 1 + i % 8
        shape = StepShape(16 * n, 16.0 * n * 108, n, n, 100 * n)
        model.update(shape, before.predict(shape) / 10)
    other = EMPTY_SHAPE.with_prefill(512, 2000)
    assert model.predict(other) == pytest.approx(before.predict(other) / 10, rel=0.2)
    assert all(0 <= value < 1 for value in model.coefficients.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_that_turns_slower_is_followed(name: str) -> None:
    model, seconds = taught(name, 400), truth_of(name)
    for shape in random_shapes(1000, seed=8):
        model.update(shape, 1.5 * seconds(shape))
    errors = [model.predict(s) / (1.5 * seconds(s)) - 1 for s in random_shapes(200, 9)]
    assert float(np.mean(np.abs(errors))) < 0.05


@pytest.mark.parametrize("slower", [1.45, 2.0])
def test_a_machine_that_turns_slower_does_not_shorten_packed_steps_for_good(slower: float) -> None:
    """As long as a 99th percentile of TBT allows: longer ones overran before the fit followed."""
    model, seconds, rng = create("attention"), truth_of("attention"), np.random.default_rng(1)

    def packed(steps: int, speed: float) -> float:
        lasted = []
        for _ in range(steps):
            decodes = [int(n) for n in rng.integers(100, 2000, int(rng.integers(1, 7)))]
            shape = StepShape.of_decodes(decodes)
            tokens = model.max_prefill_tokens(shape, 500, 0.05, 0.9965, 2048)
            shape = shape.with_prefill(tokens, 500) if tokens else shape
            lasted.append(speed * seconds(shape) * float(rng.lognormal(0.0, 0.03)))
            model.update(shape, lasted[-1])
        return float(np.median(lasted[-200:]))

    before_s = packed(3_000, 1.0)
    assert packed(500, slower) < 0.7 * before_s
    assert packed(12_000, slower) == pytest.approx(before_s, rel=0.05)


def test_first_steps_that_are_all_alike_do_not_shorten_those_after_them() -> None:
    """Eight chunks of one document, then a decode alone: a fit of such steps foresaw 0.5 ms of it.

    Steps and seconds of a live engine, whose steps took half of a P99 TBT of 120 ms for half a
    minute after each start.
    """
    model = create("attention")
    for tokens, computed, seconds in [
        (280, 302, 0.121857),
        (262, 582, 0.150785),
        (247, 844, 0.147023),
        (234, 1091, 0.152246),
        (221, 1325, 0.160388),
    ]:
        model.update(EMPTY_SHAPE.with_prefill(tokens, computed), seconds)
    for chunks, decodes, seconds in [
        ((67, 74, 67), [1547], 0.154642),
        ((74, 69, 59), [1548, 1540, 1547, 1540], 0.15444),
    ]:
        shape = StepShape.of_decodes(decodes)
        for tokens in chunks:
            shape = shape.with_prefill(tokens, 1472)
        model.update(shape, seconds)
    model.update(EMPTY_SHAPE.with_prefill(424, 0), 0.160894)
    model.update(StepShape.of_decodes([425]).with_prefill(2, 1531), 0.012892)
    model.update(StepShape.of_decodes([426]), 0.010366)
    rng = np.random.default_rng(1)
    for step in range(40):
        shape = StepShape.of_decodes([427 + step, *[1540 + step] * 8]).with_prefill(112, 2944)
        model.update(shape, 0.086 * float(rng.lognormal(0.0, 0.03)))
    assert model.within(0.12, 0.9965) > 0.08


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("steps", "least"), [(24, 0.88), (48, 0.89), (112, 0.92), (240, 0.94)])
def test_a_young_model_keeps_most_of_what_it_promises(name: str, steps: int, least: float) -> None:
    """Its first steps' residuals are by a fit that was made of them, and still nearly as wide."""
    kept = []
    for seed in range(20):
        model, seconds = taught(name, steps, 0.2, seed), truth_of(name)
        rng = np.random.default_rng(100 + seed)
        for shape in random_shapes(100, seed=200 + seed):
            took_s = seconds(shape) * float(rng.lognormal(0.0, 0.2))
            kept.append(took_s <= model.predict_high(shape, 0.95))
    assert float(np.mean(kept)) >= least


@cache
def hurried(name: str, noise: float) -> FittedModel:
    return taught(name, 80, noise)


@pytest.mark.parametrize("name", NAMES)
@given(shape=shapes, extra=extras, noise=st.sampled_from([0.0, 0.1, 0.3]))
@settings(max_examples=60, deadline=None)
def test_more_work_never_predicts_less(
    name: str, shape: StepShape, extra: StepShape, noise: float
) -> None:
    model = hurried(name, noise)
    more = shape.plus(extra)
    assert model.predict(more) >= model.predict(shape)
    assert model.predict_high(more, 0.95) >= model.predict_high(shape, 0.95)
    assert model.marginal(shape, extra) == pytest.approx(
        model.predict(more) - model.predict(shape), abs=1e-9
    )


LEARNT = {name: taught(name, 600, 0.1) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@given(
    shape=st.one_of(st.just(EMPTY_SHAPE), shapes),
    computed=st.integers(0, 100_000),
    limit_s=st.floats(-0.01, 5.0),
    q=st.sampled_from([0.5, 0.9, 0.99]),
    upper=st.integers(0, 10_000),
)
@settings(max_examples=300, deadline=None)
def test_the_largest_chunk_fits_and_one_token_more_does_not(
    name: str, shape: StepShape, computed: int, limit_s: float, q: float, upper: int
) -> None:
    model = LEARNT[name]
    tokens = model.max_prefill_tokens(shape, computed, limit_s, q, upper)
    assert 0 <= tokens <= upper
    if tokens:
        assert model.predict_high(shape.with_prefill(tokens, computed), q) <= limit_s
    if tokens < upper:
        longer = model.predict_high(shape.with_prefill(tokens + 1, computed), q)
        assert longer > limit_s * (1 - 1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(shape=shapes, context=st.integers(1, 100_000))
@settings(max_examples=50, deadline=None)
def test_a_decode_costs_what_it_adds(name: str, shape: StepShape, context: int) -> None:
    model = LEARNT[name]
    added = model.predict(shape.with_decode(context)) - model.predict(shape)
    assert model.decode_cost(context, shape) == pytest.approx(added, rel=1e-6, abs=1e-9)


def test_decodes_together_are_what_they_are_one_by_one() -> None:
    assert StepShape.of_decodes([3, 9]) == EMPTY_SHAPE.with_decode(4).with_decode(10)
    assert StepShape.of_decodes([]) == EMPTY_SHAPE


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_step_takes_no_time_and_teaches_nothing(name: str) -> None:
    model = create(name)
    assert model.predict(EMPTY_SHAPE) == 0.0
    model.update(EMPTY_SHAPE, 0.01)
    for useless in (0.0, -1.0, inf, nan):
        model.update(EMPTY_SHAPE.with_decode(10), useless)
    assert model.observed_steps == 0
    assert model.coefficients == create(name).coefficients


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_profile_predicts_as_its_model_did(name: str) -> None:
    model = LEARNT[name]
    warmed = create(name, model.state())
    for shape in random_shapes(20, 77):
        assert warmed.predict(shape) == model.predict(shape)
        assert warmed.predict_high(shape, 0.9) == pytest.approx(
            model.predict_high(shape, 0.9), rel=0.03
        )


@pytest.mark.parametrize(
    ("name", "state", "message"),
    [
        ("quadratic", None, "latency.model"),
        ("hygen", {"model": "attention"}, "profile the engine again"),
        ("hygen", {"model": "hygen"}, "coefficients"),
        ("hygen", {"model": "hygen", "coefficients": {"constant": "x"}}, "no numbers"),
        ("hygen", {"model": "hygen", "coefficients": {"constant": -1}}, "constant is -1"),
        ("hygen", {"model": "hygen", "coefficients": {"speed": 1}}, "speed is 1"),
        (
            "attention",
            {"model": "attention", "coefficients": {}, "residuals": {"900": [1.0]}},
            "bucket '900'",
        ),
        (
            "attention",
            {"model": "attention", "coefficients": {}, "residuals": {"3": [0.0]}},
            "ratios above 0",
        ),
    ],
)
def test_a_wrong_profile_names_the_field_and_the_remedy(
    name: str, state: dict[str, object] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create(name, state)


@pytest.mark.parametrize("name", NAMES)
def test_the_start_up_profile_is_enough_to_predict_other_shapes(name: str) -> None:
    steps = profile_shapes(max_batched_tokens=2048, max_seqs=64, max_model_len_tokens=4096)
    model, seconds = create(name), truth_of(name)
    for step in steps:
        model.update(step.shape, seconds(step.shape))
    model.refit()
    assert len(steps) <= 80
    assert worst_error(model, seconds) < 0.1


@given(batched=st.integers(1, 16_384), seqs=st.integers(1, 512), model_len=st.integers(2, 131_072))
@settings(max_examples=100, deadline=None)
def test_every_profile_step_fits_the_engine(batched: int, seqs: int, model_len: int) -> None:
    steps = profile_shapes(
        max_batched_tokens=batched, max_seqs=seqs, max_model_len_tokens=model_len
    )
    assert steps
    for step in steps:
        assert 1 <= step.shape.tokens <= batched
        assert len(step.prefills) + len(step.decodes) <= seqs
        assert all(new >= 1 and new + done <= model_len for new, done in step.prefills)
        assert all(1 <= context < model_len for context in step.decodes)
