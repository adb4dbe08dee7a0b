"""OmniServe's module-wise model: it finds spikes with few probes and adds modules up."""

import json
from collections.abc import Sequence
from copy import deepcopy
from math import inf, nan
from typing import Any

import pytest

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import ModulewiseModel, create
from weir_engine.latency.models.grid import Grid
from weir_engine.latency.models.module_tables import ModuleTables
from weir_engine.latency.models.spikes import spike_search, table_of

LIMITS = {"max_batched_tokens": 1024, "max_seqs": 32, "max_model_len_tokens": 2048}


class Device:
    """Exact modules with a spike every 128 tokens: our own example, the paper has only a figure."""

    def __init__(self) -> None:
        self.calls = 0

    def dense(self, tokens: int) -> float:
        self.calls += 1
        return 2e-3 + 5e-3 * -(-tokens // 128) + 1e-7 * tokens

    def prefill_attention(self, new_tokens: int, computed_tokens: int) -> float:
        return 1e-5 + 1e-9 * new_tokens * (computed_tokens + new_tokens / 2)

    def transfers(self, tokens: int) -> float:
        return 1e-3 if tokens < 8 else 4e-3

    def decode_attention(
        self,
        sequences: int,
        context_tokens: int,
        beside_tokens: int,
        longest_tokens: int | None = None,
    ) -> float:
        """Uneven ones lie a tenth of the way to the longest, beside a prefill three tenths."""
        slower, share = (1.5, 0.3) if beside_tokens else (1.0, 0.1)
        longer = share * ((longest_tokens or context_tokens) - context_tokens)
        return slower * sequences * (context_tokens + longer) * 2e-8 * (1 + 1 / sequences)

    def step(self, shape: StepShape) -> float:
        seconds = (
            3e-3
            + self.dense(shape.tokens)
            + self.transfers(shape.tokens)
            + 2e-5 * (shape.prefill_requests + shape.decode_requests)
        )
        if shape.prefill_requests:
            seconds += 1e-5 * shape.prefill_requests + 1e-9 * shape.prefill_history
        if shape.decode_requests:
            n = shape.decode_requests
            context, longest = shape.decode_context // n, shape.decode_longest
            seconds += self.decode_attention(n, context, shape.prefill_tokens, longest)
        return seconds


def some_steps() -> list[StepShape]:
    made = []
    for i in range(1, 40):
        shape = EMPTY_SHAPE
        for _ in range(i % 9):
            shape = shape.with_decode(100 + 37 * i)
        if i % 4 or shape.is_empty:
            shape = shape.with_prefill(13 * i, 29 * i)
        if i % 5 == 0:
            shape = shape.with_prefill(64, 0)
        made.append(shape)
    return made


@pytest.fixture(scope="module")
def model() -> ModulewiseModel:
    device = Device()
    made = ModulewiseModel.profiled(device, **LIMITS)
    for shape in some_steps()[::2]:
        made.update(shape, device.step(shape))
    made.refit()
    return made


def test_spikes_are_found_with_fewer_probes_than_sizes() -> None:
    device = Device()
    points = spike_search(device.dense, 1024)
    assert device.calls < 200
    table = table_of(points, 1024)
    for tokens in (1, 127, 128, 129, 500, 513, 1024):
        assert table[tokens] == pytest.approx(device.dense(tokens), rel=0.01)


def test_a_flat_module_needs_four_probes() -> None:
    assert sorted(spike_search(lambda _: 1.0, 4096)) == [1, 16, 2048, 4096]


def test_a_module_of_one_size_is_a_constant() -> None:
    assert table_of(spike_search(lambda _: 2.0, 1), 1) == [2.0, 2.0]


def test_steps_it_never_saw_are_predicted_within_a_percent(model: ModulewiseModel) -> None:
    device = Device()
    for shape in some_steps()[1::2]:
        assert model.predict(shape) == pytest.approx(device.step(shape), rel=0.01)


def test_an_empty_step_takes_no_time_and_extra_work_never_negative(model: ModulewiseModel) -> None:
    assert model.predict(EMPTY_SHAPE) == 0.0
    for shape in some_steps():
        assert model.marginal(shape, EMPTY_SHAPE.with_decode(200)) >= 0
        assert model.decode_cost(300, shape) >= 0
    assert model.decode_cost(300) > 0
    assert model.fixed_s > 2e-3


def test_prefill_tokens_found_by_bisection_fit_the_limit(model: ModulewiseModel) -> None:
    shape = EMPTY_SHAPE.with_decode(500)
    for limit_s in (0.012, 0.02, 0.03):
        tokens = model.max_prefill_tokens(shape, 100, limit_s, 0.5, 1024)
        assert 0 < tokens < 1024
        assert model.predict(shape.with_prefill(tokens, 100)) <= limit_s
        assert model.predict(shape.with_prefill(tokens + 1, 100)) > limit_s
    assert model.max_prefill_tokens(shape, 0, inf, 0.5, 700) == 700
    assert model.max_prefill_tokens(shape, 0, 1e-4, 0.5, 700) == 0
    assert model.max_prefill_tokens(shape, 0, 0.0, 0.5, 700) == 0
    assert model.max_prefill_tokens(shape, 0, 1.0, 0.5, 0) == 0


def test_beyond_its_tables_it_goes_on(model: ModulewiseModel) -> None:
    inside = EMPTY_SHAPE.with_prefill(1024, 0)
    beyond = EMPTY_SHAPE.with_prefill(4096, 0)
    assert 3 * model.predict(inside) < model.predict(beyond) < 6 * model.predict(inside)


def test_a_saved_model_predicts_the_same(model: ModulewiseModel) -> None:
    state = json.loads(json.dumps(model.state()))
    again = create("modulewise", state)
    for shape in some_steps():
        assert again.predict(shape) == pytest.approx(model.predict(shape))


def test_unprofiled_it_still_learns_from_whole_steps() -> None:
    made = create("modulewise")
    for n in range(1, 200):
        shape = EMPTY_SHAPE.with_prefill(n, 10 * n)
        made.update(shape, 5e-3 + 1e-4 * n + 1e-8 * n * (10.5 * n))
    made.refit()
    shape = EMPTY_SHAPE.with_prefill(150, 1500)
    assert made.predict(shape) == pytest.approx(5e-3 + 1.5e-2 + 1e-8 * 150 * 1575, rel=0.05)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (None, "'tables' as a mapping"),
        ({"dense": [1.0]}, "lacks a table"),
        ({"dense": ["x"], "beside": [[1, {}], [2, {}]]}, "lacks a table or holds no numbers"),
    ],
)
def test_a_broken_saved_model_is_refused(
    model: ModulewiseModel, tables: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create("modulewise", {**model.state(), "tables": tables})


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("dense",), [], "two sizes"),
        (("dense",), [1e-3], "two sizes"),
        (("dense", 3), inf, "finite"),
        (("dense", 3), 10**400, "holds no numbers"),
        (("prefill", "rows", 1), 0, "axes that rise"),
        (("decode", "columns", 0), 10**6, "axes that rise"),
        (("decode", "values", 0, 0), nan, "finite values"),
        (("uneven", "alone", "rows", 0), inf, "holds no numbers"),
        (("beside", 0, 0), 1024, "must rise"),
    ],
)
def test_a_saved_table_that_is_damaged_is_refused(
    model: ModulewiseModel, place: Sequence[str | int], value: object, message: str
) -> None:
    state: Any = deepcopy(model.state())
    table = state["tables"]
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    with pytest.raises(ConfigError, match=message):
        create("modulewise", state)


@pytest.mark.parametrize("prefill", [0, 200])
def test_one_long_context_among_short_ones_costs_what_was_measured(
    model: ModulewiseModel, prefill: int
) -> None:
    shape = EMPTY_SHAPE if not prefill else EMPTY_SHAPE.with_prefill(prefill, 0)
    uneven = even = shape
    for i in range(16):
        uneven, even = uneven.with_decode(2000 if i == 0 else 400), even.with_decode(500)
    assert uneven.decode_context == even.decode_context
    added = model.predict(uneven) - model.predict(even)
    assert added == pytest.approx(Device().step(uneven) - Device().step(even), rel=0.1)


def test_a_step_in_what_the_gpus_send_each_other_is_in_the_table() -> None:
    tables = ModuleTables.measure(Device(), **LIMITS)
    for tokens in (1, 7, 8, 9, 300):
        whole_s = Device().dense(tokens) + Device().transfers(tokens)
        assert tables.dense_s(tokens) == pytest.approx(whole_s, rel=0.01)


def test_a_grid_needs_two_values_on_each_axis() -> None:
    with pytest.raises(ConfigError, match="two or more"):
        Grid(rows=(1,), columns=(1, 2), values=((1.0, 2.0),))


def test_an_engine_of_one_token_can_be_profiled() -> None:
    tables = ModuleTables.measure(
        Device(), max_batched_tokens=1, max_seqs=1, max_model_len_tokens=1
    )
    assert tables.dense_s(1) == pytest.approx(Device().dense(1) + Device().transfers(1))
    assert tables.decode_s(1, 16) == pytest.approx(Device().decode_attention(1, 16, 0), rel=0.01)
