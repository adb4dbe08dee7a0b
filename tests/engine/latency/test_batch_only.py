"""The model of a pod without online traffic: no step too long, tokens in multiples."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.sched.mini_engine import MiniEngine, request
from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models.batch_only import BatchOnlyModel

_PREFILL = StepShape(prefill_tokens=100, prefill_requests=1)


@settings(deadline=None)
@given(decodes=st.integers(0, 300), upper=st.integers(1, 4_000), multiple=st.integers(1, 256))
def test_a_step_ends_at_a_multiple_or_has_one_prompt_alone(
    decodes: int, upper: int, multiple: int
) -> None:
    shape = StepShape(decode_requests=decodes)
    tokens = BatchOnlyModel(multiple=multiple).max_prefill_tokens(shape, 0, 1.0, 0.5, upper)
    assert 1 <= tokens <= upper
    assert (decodes + tokens) % multiple == 0 or tokens == upper


def test_a_prompt_too_short_for_the_next_multiple_waits() -> None:
    model = BatchOnlyModel(multiple=128)
    assert model.max_prefill_tokens(_PREFILL, 0, 1.0, 0.5, 27) == 0
    assert model.max_prefill_tokens(_PREFILL, 0, 1.0, 0.5, 28) == 28
    assert model.max_prefill_tokens(_PREFILL, 0, 1.0, 0.5, 200) == 156
    assert model.max_prefill_tokens(_PREFILL, 0, 0.0, 0.5, 200) == 0


def test_an_online_prompt_too_short_for_the_next_multiple_waits_a_step() -> None:
    engine = MiniEngine(preset="blendserve", model=BatchOnlyModel(multiple=16))
    for name in ("one", "two"):
        engine.add(request(name, online=True, prompt=6, output=2))
    assert [(work.request_id, work.tokens) for work in engine.step().work] == [("one", 6)]
    engine.run()
    assert set(engine.ended) == {"one", "two"}


def test_no_step_is_longer_than_another_and_nothing_is_learnt() -> None:
    model = BatchOnlyModel()
    before = model.predict(_PREFILL)
    model.update(_PREFILL, 10.0)
    model.refit()
    assert model.predict(_PREFILL) == model.predict_high(_PREFILL, 0.99) == before == model.fixed_s
    assert model.predict(EMPTY_SHAPE) == 0.0
    assert model.marginal(_PREFILL, _PREFILL) == model.decode_cost(500) == 0.0
    assert (model.high(1.0, 0.9), model.within(1.0, 0.9)) == (1.0, 1.0)
    assert model.observed_steps == 0
    assert model.state() == {"model": "batch-only", "multiple": 1}


def test_a_multiple_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiple"):
        BatchOnlyModel(multiple=0)
