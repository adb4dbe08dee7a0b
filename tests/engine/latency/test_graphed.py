"""What the model of an engine with CUDA graphs knows of steps beyond them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.latency.test_models import random_shapes
from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import AttentionModel, GraphedModel, create
from weir_engine.latency.models.batch_only import BatchOnlyModel

# As on a GPU whose host is slow: 4 ms a step, 20 us a token; beyond 512 tokens 18 ms, and 2 us for
# each of those.
COSTS = {
    "constant": 0.004,
    "prefill_tokens": 2e-5,
    "prefill_history": 0.0,
    "prefill_requests": 0.0,
    "decode_requests": 5e-5,
    "decode_context": 3e-8,
    "mixed_context": 0.0,
    "beyond_graphs": 0.018,
    "beyond_tokens": 2e-6,
}


def model(graph_tokens: int = 512) -> GraphedModel:
    return GraphedModel(COSTS, graph_tokens=graph_tokens)


def prompts(tokens: int) -> StepShape:
    return EMPTY_SHAPE.with_prefill(tokens, 0)


def test_a_step_of_one_token_more_than_a_graph_costs_the_launch_besides() -> None:
    assert model().predict(prompts(512)) == pytest.approx(0.004 + 512 * 2e-5)
    assert model().predict(prompts(513)) == pytest.approx(0.004 + 513 * 2e-5 + 0.018 + 2e-6)
    beside = StepShape.of_decodes([100] * 12)
    assert model().predict(beside.with_prefill(501, 0)) - model().predict(
        beside.with_prefill(500, 0)
    ) == pytest.approx(0.018 + 2e-5 + 2e-6)


def test_tokens_beyond_have_a_price_of_their_own() -> None:
    assert model().predict(prompts(1_512)) == pytest.approx(0.004 + 1_512 * 2e-5 + 0.018 + 2e-3)
    assert model().beyond_graphs_s(1_512) == pytest.approx(0.020)
    assert model().beyond_graphs_s(512) == 0.0
    within, beyond = prompts(400), prompts(600)
    dearer = model().decode_cost(100, beyond) - model().decode_cost(100, within)
    assert dearer == pytest.approx(2e-6)


def test_without_graphs_it_is_the_attention_model() -> None:
    plain = AttentionModel({name: COSTS[name] for name in AttentionModel.features_by_name})
    for shape in random_shapes(100):
        assert model(0).predict(shape) == plain.predict(shape)
        assert model(0).max_prefill_tokens(shape, 40, 0.05, 0.5, 4_000) == plain.max_prefill_tokens(
            shape, 40, 0.05, 0.5, 4_000
        )
    assert model(0).beyond_graphs_s(8_000) == 0.0


@pytest.mark.parametrize("made", [AttentionModel(), BatchOnlyModel()])
def test_models_of_engines_without_graphs_know_no_price_beyond(
    made: AttentionModel | BatchOnlyModel,
) -> None:
    assert made.graph_tokens == 0
    assert made.beyond_graphs_s(8_000) == 0.0


def test_what_lies_beyond_is_learnt_from_steps() -> None:
    truth, learner = model(), GraphedModel(graph_tokens=512)
    for shape in random_shapes(1_000):
        learner.update(shape, truth.predict(shape))
    learner.refit()
    assert learner.beyond_graphs_s(513) == pytest.approx(0.018, rel=0.02)
    assert learner.beyond_graphs_s(4_512) == pytest.approx(0.026, rel=0.02)
    assert learner.predict(prompts(600)) == pytest.approx(truth.predict(prompts(600)), rel=0.02)


@given(
    decodes=st.integers(0, 600),
    prompt=st.integers(0, 700),
    limit_s=st.floats(0.0, 0.2),
    upper=st.integers(0, 8_192),
)
def test_the_largest_chunk_fits_and_one_token_more_does_not(
    decodes: int, prompt: int, limit_s: float, upper: int
) -> None:
    shape = StepShape.of_decodes([500] * decodes)
    shape = shape.with_prefill(prompt, 0) if prompt else shape
    tokens = model().max_prefill_tokens(shape, 100, limit_s, 0.5, upper)
    assert 0 <= tokens <= upper
    if tokens:
        assert model().predict(shape.with_prefill(tokens, 100)) <= limit_s
    if tokens < upper:
        more = model().predict(shape.with_prefill(tokens + 1, 100))
        assert more > limit_s * (1 - 1e-9)


def test_a_saved_profile_knows_how_large_graphs_are() -> None:
    saved = json.loads(json.dumps(model().state()))
    again = create(GraphedModel.name, saved)
    assert again.graph_tokens == 512
    assert again.predict(prompts(600)) == model().predict(prompts(600))
    for wrong in (None, -1, "512"):
        with pytest.raises(ConfigError, match="graph_tokens"):
            create(GraphedModel.name, saved | {"graph_tokens": wrong})
