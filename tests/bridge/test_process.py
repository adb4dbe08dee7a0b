"""Policy in and telemetry out across the boundary of a real engine process."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.bridge.engine_host import BLOCK_TOKENS, ENVIRONMENT, MODEL, numbers, text
from weir_agent.sample_model import write_sample_model
from weir_agent.vllm_bridge import SCHEDULER_CLS
from weir_agent.vllm_bridge.messages import (
    LATENCY_PROFILE,
    SET_POLICY,
    TELEMETRY,
    RequestTag,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.asyncio(loop_scope="module"),
]

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

BLOCKS = 100
PATIENCE_S = 120


class Remote:
    """The engine process, called as the agent calls it."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.engine = engine

    async def call(self, method: str, *arguments: object) -> dict[str, Any]:
        answer = self.engine.engine_core.call_utility_async(method, *arguments)
        result: dict[str, Any] = await asyncio.wait_for(answer, PATIENCE_S)
        return result

    async def telemetry(self) -> dict[str, Any]:
        return await self.call(TELEMETRY)

    async def set_policy(self, policy: object) -> dict[str, Any]:
        return await self.call(SET_POLICY, policy)

    async def until(self, key: str, value: int) -> None:
        """Wait until the telemetry shows that value."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.telemetry())[key] != value:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    async def generate(self, name: str, *, offline: bool = False) -> int:
        """Four tokens; answers with how many came."""
        from vllm import SamplingParams

        tag = RequestTag.model_validate({"class": "offline" if offline else "online"})
        params = SamplingParams(
            temperature=0, max_tokens=4, ignore_eos=True, extra_args=tag.as_extra_args()
        )
        prompt: Any = {"prompt_token_ids": list(text(numbers(len(name)), 50))}
        tokens = 0
        async for output in self.engine.generate(prompt, params, name):
            tokens = len(output.outputs[0].token_ids)
        return tokens


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Remote]:
    os.environ.update(ENVIRONMENT)
    folder: Path = tmp_path_factory.mktemp("model")
    write_sample_model(folder, MODEL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=str(folder),
                dtype="float32",
                enforce_eager=True,
                num_gpu_blocks_override=BLOCKS,
                block_size=BLOCK_TOKENS,
                max_num_seqs=8,
                max_num_batched_tokens=512,
                max_model_len=1024,
                scheduling_policy="priority",
                scheduler_cls=SCHEDULER_CLS,
                additional_config={"weir": {"strict": True}},
            )
        )
        yield Remote(engine)
        engine.shutdown()


async def test_a_policy_is_checked_and_answers_name_the_field(engine: Remote) -> None:
    wrong = {"offline_kv_blocks": -1, "offline_seq_slots": 1}
    answer = await engine.set_policy(wrong)
    assert answer["accepted"] is False
    assert answer["error"].startswith("policy.offline_kv_blocks:")
    answer = await engine.set_policy({"offline_kv_blocks": 1, "slots": 2})
    assert answer["accepted"] is False
    assert "offline_seq_slots" in answer["error"]
    answer = await engine.set_policy("all")
    assert answer["accepted"] is False
    assert await engine.generate("still-serves") == 4


async def test_telemetry_is_plain_and_of_fixed_size(engine: Remote) -> None:
    first = await engine.telemetry()
    await engine.generate("one")
    second = await engine.telemetry()
    assert set(first) == set(second)
    assert second["total_blocks"] == BLOCKS - 1
    assert second["online_tokens"] == first["online_tokens"] + 4
    assert second["steps"] == first["steps"] + 4
    assert second["ttft"]["count"] == first["ttft"]["count"] + 1
    assert second["tbt"]["count"] == first["tbt"]["count"] + 3
    assert second["tpot"]["count"] == first["tpot"]["count"] + 1
    assert len(msgspec.msgpack.encode(second)) < 4096


async def test_offline_work_sleeps_until_a_policy_wakes_it(engine: Remote) -> None:
    """Without a lease the engine's loop sleeps instead of spinning, and a policy wakes it."""
    await engine.set_policy({"offline_kv_blocks": 0, "offline_seq_slots": 0})
    offline = asyncio.create_task(engine.generate("offline", offline=True))
    await engine.until("offline_waiting", 1)
    begun_s = time.monotonic()
    before = (await engine.telemetry())["turns"]
    await asyncio.sleep(0.5)
    after, took_s = (await engine.telemetry())["turns"], time.monotonic() - begun_s
    assert after - before <= 4 + 2 * took_s  # a spinning loop turns a thousand times a second
    assert not offline.done()
    assert await engine.generate("beside") == 4
    assert not offline.done()
    policy = {"offline_kv_blocks": 50, "offline_seq_slots": 2, "lease_s": 60.0}
    assert await engine.set_policy(policy) == {"accepted": True}
    assert await asyncio.wait_for(offline, PATIENCE_S) == 4


async def test_a_policy_ages_out_inside_the_engine(engine: Remote) -> None:
    """Design §9: nobody has to take a policy back."""
    policy = {"offline_kv_blocks": 50, "offline_seq_slots": 2, "lease_s": 0.0}
    assert await engine.set_policy(policy) == {"accepted": True}
    offline = asyncio.create_task(engine.generate("late", offline=True))
    await engine.until("offline_waiting", 1)
    assert await engine.generate("beside") == 4
    assert not offline.done()
    policy["lease_s"] = 60.0
    await engine.set_policy(policy)
    assert await asyncio.wait_for(offline, PATIENCE_S) == 4


async def test_the_latency_profile_can_be_saved_and_given_back(engine: Remote) -> None:
    from weir_engine.latency import models

    profile = await engine.call(LATENCY_PROFILE)
    restored = models.create(profile["model"], profile).state()
    assert restored["coefficients"] == pytest.approx(profile["coefficients"])


async def test_a_client_that_leaves_leaves_nothing_behind(engine: Remote) -> None:
    policy = {"offline_kv_blocks": 0, "offline_seq_slots": 0}
    await engine.set_policy(policy)
    offline = asyncio.create_task(engine.generate("leaves", offline=True))
    await engine.until("offline_waiting", 1)
    offline.cancel()
    await engine.until("requests", 0)
    telemetry = await engine.telemetry()
    assert telemetry["free_kv_blocks"] == telemetry["total_blocks"]
