"""OmniServe's baselines in the simulator: headroom for online, attention of all decodes on CPUs."""

import numpy as np
import pytest

from tests.engine.sim.runs import SHAPE, offline, online, replica
from weir_engine.config import EngineShape
from weir_engine.kv.manager import KvManager
from weir_engine.sim.cost import Part
from weir_engine.sim.cpu_attention_cost import CpuAttentionCost
from weir_engine.sim.headroom import HeadroomScheduler, cpu_serving_tokens_s
from weir_engine.sim.loop import Planner
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import StepBatch, load_profile

PROFILE = load_profile("rtx-pro-6000-llama-3.1-8b")
DECODES = [Part(1, 4000) for _ in range(64)]


def test_offline_requests_never_hold_more_than_the_headroom_leaves() -> None:
    seen: list[int] = []

    class Watched(HeadroomScheduler):
        def commit(self, plan: object, outcome: object) -> None:
            seen.append(self._kv.offline_only_blocks)
            super().commit(plan, outcome)  # type: ignore[arg-type]

    def make(shape: EngineShape, kv: KvManager) -> Planner:
        return Watched(shape, kv, step_tokens=256, offline_blocks=24)

    specs = offline(count=8)
    result = replica().simulate(online=online(), offline=specs, until_s=200.0, planner=make)
    assert len(result.online) == len(online())
    assert result.offline_finished > 0
    largest = max((s.prompt_tokens + s.output_tokens) // SHAPE.block_size_tokens for s in specs)
    assert 0 < max(seen) <= 24 + largest


def test_cpu_hosts_alone_serve_by_what_their_cores_and_memory_allow() -> None:
    one = cpu_serving_tokens_s(PROFILE, hosts=1, prompt_tokens=8952, output_tokens=136)
    five = cpu_serving_tokens_s(PROFILE, hosts=5, prompt_tokens=8952, output_tokens=136)
    assert five == pytest.approx(5 * one)
    assert one < 2e12 / (2 * PROFILE.model.parameters)  # its cores alone would give this


class TestCpuAttentionCost:
    """The longer of the two lanes, with the weights read twice."""

    def test_many_long_contexts_are_bound_by_the_cpus(self) -> None:
        cost = CpuAttentionCost(profile=PROFILE)
        seconds = cost.work_s(DECODES)
        assert seconds == pytest.approx(cost.cpu_s(64, 64 * 4001), rel=0.01)
        assert seconds > ProfileCost(profile=PROFILE).work_s(DECODES)

    def test_more_hosts_read_faster_until_the_gpu_binds(self) -> None:
        times = [CpuAttentionCost(profile=PROFILE, hosts=n).work_s(DECODES) for n in (1, 2, 64)]
        assert times[0] > times[1] > times[2]
        short = [Part(1, 10)]
        gpu_s = CpuAttentionCost(profile=PROFILE, hosts=64).work_s(short)
        assert gpu_s > 1.9 * PROFILE.timing.step(_one_token()).dense_s

    def test_without_decodes_it_is_the_gpu_alone(self) -> None:
        prompt = [Part(512, 0)]
        alone = ProfileCost(profile=PROFILE)
        cost = CpuAttentionCost(profile=PROFILE)
        assert cost.work_s(prompt) == pytest.approx(alone.work_s(prompt))
        assert cost.empty_step_s == alone.empty_step_s

    def test_steps_have_the_profiles_noise_around_their_mean(self) -> None:
        cost = CpuAttentionCost(profile=PROFILE)
        rng = np.random.default_rng(3)
        drawn = [cost.seconds(DECODES, rng) for _ in range(200)]
        assert np.std(drawn) > 0
        fixed_s = cost.empty_step_s - cost.work_s(())
        assert np.mean(drawn) == pytest.approx(cost.work_s(DECODES) + fixed_s, rel=0.02)


def _one_token() -> StepBatch:
    return StepBatch(1, (), 0, 0, 0, 0)
