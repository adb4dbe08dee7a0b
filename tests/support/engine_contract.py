"""What every engine under the agent must do; the fake and the real one are held to the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir_agent.agent import ServingEngine
from weir_agent.asgi_call import post
from weir_agent.engine import EngineGoneError, OfflineLine
from weir_agent.kept_profile import KeptProfile
from weir_agent.policy import ONLINE_ONLY, ActivePolicy
from weir_agent.settings import SettingsError, load_settings
from weir_agent.vllm_bridge.environment import prepare_environment
from weir_cli.loadlab.processor import native_dtype
from weir_engine.latency import models

if TYPE_CHECKING:
    from weir_agent.vllm_bridge.serving import VllmEngine

POLICY = ActivePolicy(
    source="control_plane",
    offline_kv_blocks=100,
    offline_seq_slots=4,
    step_budget_s=None,
    lease_s=600.0,
)
LEVELS = {
    "total_blocks",
    "block_size_tokens",
    "online_kv_blocks",
    "online_reuse_blocks",
    "offline_kv_blocks",
    "free_kv_blocks",
    "offline_served_tokens",
}


def line(number: int, *, max_tokens: int = 3, **changes: object) -> OfflineLine:
    """A line that asks for a completion."""
    values: dict[str, Any] = {
        "chunk_id": "chunk",
        "attempt": 1,
        "line": number,
        "request_id": f"batch_req_{number}",
        "url": "/v1/completions",
        "body": {
            "model": "sample",
            "prompt": f"number {number}",
            "max_tokens": max_tokens,
            "temperature": 0,
        },
        "tenant": "acme",
        "group": "group",
        "deadline_s": None,
        "expected_output_tokens": max_tokens,
    }
    return OfflineLine(**{**values, **changes})


async def check_engine(engine: ServingEngine) -> None:
    """Runs the whole contract; the engine is dead afterwards."""
    await _check_work(engine)
    await _check_cancel(engine)
    await _check_death(engine)


async def _check_work(engine: ServingEngine) -> None:
    assert engine.models[0].name == "sample"
    assert engine.models[0].max_model_len_tokens > 0
    assert not engine.dead
    before = await engine.telemetry()
    assert before.keys() >= LEVELS
    assert before["total_blocks"] > 0
    await engine.set_policy(ONLINE_ONLY.message({}))
    await engine.set_policy(POLICY.message({"tbt_p99": 0.001}))
    outcomes = await asyncio.gather(*(engine.execute(line(number)) for number in range(8)))
    for outcome in outcomes:
        assert outcome.status_code == 200
        assert outcome.body["choices"][0]["text"]
        assert outcome.body["usage"]["completion_tokens"] == 3
        assert outcome.cached_tokens >= 0
    after = await engine.telemetry()
    assert after["offline_served_tokens"] > before["offline_served_tokens"]


async def _check_texts(engine: VllmEngine) -> None:
    """A line gets the words that an online request gets, though they are made elsewhere."""
    from weir_agent.vllm_bridge import serving

    assert serving._fast_tokenizer(engine._llm.tokenizer) is not None
    await engine.set_policy(POLICY.message({}))
    answer = {"model": "sample", "temperature": 0, "max_tokens": 40, "min_tokens": 3}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Say 🌊"}]}
    for url, body in (
        ("/v1/completions", {"prompt": "number 7", "stop_token_ids": list(range(65, 91))}),
        ("/v1/completions", {"prompt": ["one", "two"], "logprobs": 1}),
        ("/v1/completions", {"prompt": "one", "stop": ["a", "e", "i"]}),
        ("/v1/chat/completions", chat),
    ):
        asked = {**answer, **body}
        offline = await engine.execute(line(30, url=url, body=asked))
        online = await post(engine.app, url, body=json.dumps(asked).encode(), headers={})
        expected = json.loads(online.body)["choices"]
        assert all(choice["finish_reason"] in {"stop", "length"} for choice in expected)
        assert offline.body["choices"] == expected


async def _check_shortened(engine: VllmEngine) -> None:
    """A line that is ended early asks for more tokens at least than it gets; online goes on."""
    await engine.set_policy(POLICY.message({}))
    body = {"model": "sample", "prompt": "one", "logprobs": 20, "max_tokens": 40, "min_tokens": 30}
    async with asyncio.timeout(60):
        outcome = await engine.execute(line(35, body=body, most_tokens=5))
        assert outcome.cut
        await engine.telemetry()


async def _check_abort(engine: VllmEngine) -> None:
    """What is aborted has no answer, and the engine goes on."""
    await engine.set_policy(POLICY.message({}))
    running = asyncio.create_task(engine.execute(line(40, max_tokens=800)))
    async with asyncio.timeout(120):
        while not (await engine.telemetry())["offline_running"]:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    await engine._llm.pause_generation(mode="abort")
    with pytest.raises(EngineGoneError):
        await running
    assert not engine.dead
    await engine.telemetry()
    await engine.set_policy(POLICY.message({}))
    again = asyncio.create_task(engine.execute(line(40)))
    await engine._llm.resume_generation()
    assert (await again).status_code == 200


async def _check_cancel(engine: ServingEngine) -> None:
    running = asyncio.create_task(engine.execute(line(50, max_tokens=800)))
    await asyncio.sleep(0.2)
    if not running.done():  # the fake answers at once
        running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    async with asyncio.timeout(120):
        while (await engine.telemetry()).get("offline_running", 0):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
    assert (await engine.execute(line(51))).status_code == 200


async def _check_death(engine: ServingEngine) -> None:
    engine.kill()
    await _until(lambda: engine.dead)
    for call in (engine.execute(line(60)), engine.telemetry(), engine.set_policy({})):
        try:
            await call
        except EngineGoneError:
            continue
        raise AssertionError("a dead engine answered")


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.02)


def _check_scheduler_settings(model: str, data_dir: Path) -> None:
    """What the scheduler refuses is told before an engine starts, by the variable to set."""
    from weir_agent.vllm_bridge import arguments

    profile = data_dir / "profile.json"
    steep, huge = (
        json.dumps({**model.state(), "coefficients": dict.fromkeys(model.features_by_name, each)})
        for model in [models.create("attention")]
        for each in (1e308, 10**400)
    )
    profile.parent.mkdir(parents=True, exist_ok=True)
    for given, content, words in (
        ({"preset": "weird"}, "", "give one of weir, hygen.*WEIR_PRESET"),
        ({"preset": "hygen"}, "", "static_budget_s.*WEIR_STATIC_BUDGET_S"),
        ({"preset": "echo"}, "", "WEIR_SLO"),
        ({"latency_profile": profile}, "[]", "no JSON object.*WEIR_LATENCY_PROFILE"),
        ({"latency_profile": profile}, '{"model": "x"}', "latency.model.*WEIR_LATENCY_PROFILE"),
        ({"latency_profile": profile}, steep, "a step of one token takes.*WEIR_LATENCY_PROFILE"),
        ({"latency_profile": profile}, huge, "no numbers.*WEIR_LATENCY_PROFILE"),
        ({"latency_profile": profile}, "[" * 100_000, "recursion.*WEIR_LATENCY_PROFILE"),
    ):
        profile.write_text(content)
        settings = load_settings(data_dir=data_dir, **given)
        with pytest.raises(SettingsError, match=words):
            arguments.parse(settings, ["--model", model])
    hygen = load_settings(data_dir=data_dir, preset="hygen", static_budget_s=0.05)
    assert arguments.parse(hygen, ["--model", model]).scheduler_cls


def _check_kept_profile(model: str, data_dir: Path) -> None:
    """A start of the same engine finds its own profile, and the code that vLLM has compiled."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    from weir_agent.vllm_bridge import arguments

    def started() -> tuple[str, str]:
        args = arguments.parse(load_settings(data_dir=data_dir), ["--model", model])
        identity = arguments.identity(args)
        arguments.warm(args, data_dir, identity)
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
        return identity, config.compute_hash()

    first = started()
    profile = {**models.create().state(), "coefficients": {"constant": 0.01}}
    KeptProfile(data_dir, identity=first[0]).write(profile)
    assert started() == first
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setattr(os, "sched_getaffinity", lambda _: set(range(77)))
        assert started()[0] != first[0]
    config = Path(model) / "config.json"
    content = config.read_text()
    config.write_text(content.replace("}", ' ,"of": "another model"}'))
    assert started()[0] != first[0]
    config.write_text(content)


def check_vllm(model: str, data_dir: str) -> None:
    """The contract on real vLLM; ends the process with status 0 when it holds."""
    prepare_environment()
    from weir_agent.vllm_bridge import arguments, serving

    settings = load_settings(data_dir=Path(data_dir))
    engine_args = (
        f"--model {model} --served-model-name sample --dtype {native_dtype()} --block-size 32 "
        "--enforce-eager --max-model-len 1024 --num-gpu-blocks-override 256 --max-num-seqs 16"
    )

    for wrong, words in (
        ("--no-such-flag", "no-such-flag"),
        ("--scheduling-policy fcfs", "--scheduling-policy fcfs contradicts"),
        ("--max-num-seqs many", "max-num-seqs"),
    ):
        with pytest.raises(SettingsError, match=f"{words}.*WEIR_ENGINE_ARGS"):
            arguments.parse(settings, ["--model", model, *wrong.split()])
    _check_scheduler_settings(model, Path(data_dir))
    _check_kept_profile(model, Path(data_dir))

    async def main() -> None:
        args = arguments.parse(settings, engine_args.split())
        identity = arguments.identity(args)
        engine = await serving.start(args, settings, identity=identity)
        await _check_texts(engine)
        await _check_shortened(engine)
        await _check_abort(engine)
        await check_engine(engine)

    asyncio.run(main())
    os._exit(0)  # vLLM's own end would wait for the engine that was killed
