"""A whole batch in units of several tokens: what is kept, and how it costs."""

from math import inf

import numpy as np
import pytest

from weir_engine.config import EngineShape, Policy
from weir_engine.ids import RequestClass
from weir_engine.kv.manager import KvManager
from weir_engine.latency.models.batch_only import BatchOnlyModel
from weir_engine.pool.simple_orders import FcfsOrder
from weir_engine.presets import build_scheduler
from weir_engine.sim.batch import BatchEngine, BatchSet, CoarseCost, OrderFeeder
from weir_engine.sim.cost import Part
from weir_engine.sim.loop import Simulation
from weir_engine.sim.profile_cost import Backend, ProfileCost, batch_of
from weir_engine.sim.profiles import StepBatch, load_profile
from weir_engine.sim.records import SimResult

_PROFILE = load_profile("a100-80gb-llama-3.1-8b")


def _cost(backend: Backend = Backend.SEQUENTIAL) -> ProfileCost:
    return ProfileCost(profile=_PROFILE, backend=backend, noise_scale=0.0)


def _run(factor: int, *, requests: int = 60) -> tuple[SimResult, BatchEngine, CoarseCost]:
    """Two families over 320 shared tokens each, 320 of their own, 160 out."""
    size = 16 // factor
    shared = 320 // 16
    hashes = np.r_[
        [(family << 20) | at for family in np.arange(requests) % 2 for at in range(shared)]
    ]
    batch = BatchSet(
        prompt_tokens=np.full(requests, 640 // factor),
        output_tokens=np.full(requests, 160 // factor),
        expected_tokens=np.full(requests, 160 // factor),
        hashes=hashes,
        offsets=np.arange(requests + 1) * shared,
    )
    shape = EngineShape(
        block_size_tokens=size,
        total_blocks=2_000,
        max_batched_tokens=512,
        max_seqs=64,
        max_model_len_tokens=4_096,
    )
    kv = KvManager(total_blocks=shape.total_blocks, block_size_tokens=size)
    pool = FcfsOrder()
    scheduler = build_scheduler(
        "sarathi",
        shape=shape,
        slos=(),
        kv=kv,
        model=BatchOnlyModel(),
        pool=pool,
        policy=Policy(offline_kv_blocks=shape.total_blocks, offline_seq_slots=64),
    )
    cost = CoarseCost(_cost(), factor=factor)
    engine = BatchEngine(kv=kv, cost=cost, rng=np.random.default_rng(1), batch=batch)
    feeder = OrderFeeder(batch, range(requests), waiting=lambda _: len(pool), window=8)
    result = Simulation(scheduler=scheduler, engine=engine, online=(), offline=feeder).run(
        until_s=inf
    )
    kv.check()
    return result, engine, cost


@pytest.mark.parametrize("factor", [1, 4])
def test_every_request_ends_once_and_shared_prefixes_are_computed_once(factor: int) -> None:
    result, engine, _ = _run(factor)
    assert result.offline_finished == 60
    assert len(engine) == 0
    hits = engine.kv.hit_counts(RequestClass.OFFLINE)
    assert hits.hit_tokens * factor == 58 * 320  # one leader a family


def test_coarse_steps_take_about_the_time_of_single_ones() -> None:
    """Four steps planned as one: within 5% on a batch that fills and drains."""
    fine, coarse = _run(1), _run(4)
    assert len(coarse[0].steps) < len(fine[0].steps) / 3
    assert coarse[0].steps[-1].ended_s == pytest.approx(fine[0].steps[-1].ended_s, rel=0.05)
    assert coarse[2].compute_s == pytest.approx(fine[2].compute_s, rel=0.05)


def test_one_step_costs_what_the_profile_says() -> None:
    parts = [Part(tokens=1, computed_tokens=300), Part(tokens=200, computed_tokens=64)]
    for backend in Backend:
        cost = CoarseCost(_cost(backend))
        expected = _cost(backend).step_s(batch_of(parts))
        assert cost.seconds(parts, np.random.default_rng(0)) == pytest.approx(expected)


def test_a_coarse_step_is_its_prompts_one_after_the_other() -> None:
    """Two prompts of 100 units of 2 tokens: each of the two steps computes one of them."""
    coarse = CoarseCost(_cost(), factor=2)
    seconds = coarse.seconds(
        [Part(tokens=100, computed_tokens=0), Part(tokens=100, computed_tokens=10)],
        np.random.default_rng(0),
    )
    one = _cost().step_s(batch_of([Part(tokens=200, computed_tokens=0)]))
    other = _cost().step_s(batch_of([Part(tokens=200, computed_tokens=20)]))
    assert seconds == pytest.approx(one + other)
    assert coarse.work_s(()) == 0.0
    assert coarse.empty_step_s == _cost().empty_step_s


def test_steps_planned_as_one_are_rounded_to_multiples_up_and_down() -> None:
    """300 tokens a step become 256 and 384, two to one; 300 decodes alone stay what they are."""
    prompt, decodes = Part(tokens=280, computed_tokens=0), [Part(tokens=1, computed_tokens=9)] * 20
    rng = np.random.default_rng(0)
    tiled = CoarseCost(_cost(), factor=3, multiple=128)
    seconds = tiled.seconds([prompt, *decodes], rng)
    whole = CoarseCost(_cost(), factor=3)
    whole_s = whole.seconds([prompt, *decodes], rng)
    dense = {n: _PROFILE.timing.step(StepBatch(n, [], 0, 0, 0, 0)).dense_s for n in (256, 300, 384)}
    expected_s = 2 * dense[256] + dense[384] - 3 * dense[300]
    step = (300 - 256) / 128 * 3  # a third, to the tokens
    assert seconds - whole_s == pytest.approx(
        (3 - step) * dense[256] + step * dense[384] - 3 * dense[300]
    )
    assert seconds - whole_s == pytest.approx(expected_s, rel=0.1)
    alone = [Part(tokens=1, computed_tokens=9)] * 300
    assert tiled.seconds(alone, rng) == pytest.approx(whole.seconds(alone, rng))
