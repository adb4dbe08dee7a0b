"""The latency model outlives the engine that learned it, and never another one's."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import StartAgent
from tests.support.fake_engine import FakeEngine
from weir_agent.kept_profile import FILE_NAME, KeptProfile
from weir_agent.vllm_bridge.messages import BridgeSettings
from weir_agent.vllm_bridge.planner import build_planner
from weir_engine.config import EngineShape
from weir_engine.kv.manager import KvManager
from weir_engine.latency import models
from weir_engine.latency.features import EMPTY_SHAPE

SHAPE = EngineShape(
    block_size_tokens=16,
    total_blocks=64,
    max_batched_tokens=512,
    max_seqs=16,
    max_model_len_tokens=512,
)


def learned(name: str = "attention") -> dict[str, object]:
    """The state of a model that saw some steps."""
    model = models.create(name)
    for tokens in range(1, 200):
        model.update(EMPTY_SHAPE.with_prefill(tokens, 0), 0.002 + 1e-5 * tokens)
    return dict(model.state())


def test_what_was_written_is_read_by_the_same_engine_only(tmp_path: Path) -> None:
    profile = learned()
    KeptProfile(tmp_path, identity="a").write(profile)
    read = KeptProfile(tmp_path, identity="a").read(model="attention")
    assert read is not None
    warmed = models.create(str(read["model"]), read)
    shape = EMPTY_SHAPE.with_prefill(100, 0)
    assert warmed.predict(shape) == pytest.approx(0.003, rel=0.1)
    assert KeptProfile(tmp_path, identity="b").read(model="attention") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"identity": "a"}',
        b'{"identity": "a", "profile": {"model": "no"}}',
        b"[" * 100_000,
    ],
    ids=["empty", "half", "list", "identity", "unknown", "deep"],
)
def test_a_file_that_is_no_profile_is_no_obstacle(tmp_path: Path, content: bytes) -> None:
    kept = KeptProfile(tmp_path, identity="a")
    assert kept.read(model="attention") is None
    (tmp_path / FILE_NAME).write_bytes(content)
    assert kept.read(model="attention") is None
    profile = learned()
    kept.write(profile)
    assert kept.read(model="attention") is not None


@pytest.mark.parametrize(
    ("table", "damaged"),
    [("dense", []), ("dense", [10**400] * 64), ("prefill", {"rows": [0, 0]})],
    ids=["empty", "beyond-floats", "rows"],
)
def test_a_damaged_table_is_no_obstacle(tmp_path: Path, table: str, damaged: object) -> None:
    """The engine would not start, nor with any later restart."""
    kept = KeptProfile(tmp_path, identity="a")
    profile: dict[str, Any] = json.loads(json.dumps(learned("modulewise")))
    old = profile["tables"][table]
    profile["tables"][table] = {**old, **damaged} if isinstance(damaged, dict) else damaged
    kept.write(profile)
    assert kept.read(model="modulewise") is None


@pytest.mark.parametrize("name", models.MODEL_NAMES)
def test_what_each_model_learned_is_taken_up(tmp_path: Path, name: str) -> None:
    kept = KeptProfile(tmp_path, identity="a")
    kept.write(learned(name))
    assert kept.read(model=name) is not None


@pytest.mark.parametrize(
    "coefficients",
    [{"prefill_tokens": 1e307}, {"decode_context": 1e308}, {"constant": 3600.0}],
)
def test_step_costs_that_no_engine_has_are_not_taken_up(
    tmp_path: Path, coefficients: dict[str, float]
) -> None:
    """The engine would end with its first step, and again with each restart, or plan nothing."""
    kept = KeptProfile(tmp_path, identity="a")
    kept.write({"model": "attention", "coefficients": coefficients, "residuals": {}})
    assert kept.read(model="attention") is None


@pytest.mark.parametrize(("preset", "model"), [("weir", "attention"), ("sarathi", "hygen")])
def test_each_preset_plans_with_its_own_model(tmp_path: Path, preset: str, model: str) -> None:
    """What another preset's engine left in the same folder takes nobody's seat."""
    KeptProfile(tmp_path, identity="a").write(learned())
    settings = BridgeSettings.model_validate(
        {
            "preset": preset,
            "slos": [{"metric": "tbt", "statistic": "p99", "threshold_s": 0.1}],
            "kept": {"folder": tmp_path, "identity": "a"},
        }
    )
    planner = build_planner(settings, SHAPE, KvManager(total_blocks=64, block_size_tokens=16))
    used = planner.model  # type: ignore[attr-defined]
    assert used.name == model
    warm = models.create(model, learned()) if model == "attention" else models.create(model)
    assert used.coefficients == warm.coefficients


def test_an_engine_with_cuda_graphs_has_a_model_and_a_profile_of_its_own(tmp_path: Path) -> None:
    kept = KeptProfile(tmp_path, identity="a")
    settings = BridgeSettings.model_validate(
        {
            "slos": [{"metric": "tbt", "statistic": "p99", "threshold_s": 0.1}],
            "kept": {"folder": tmp_path, "identity": "a"},
        }
    )

    def used(settings: BridgeSettings) -> models.FittedModel:
        kv = KvManager(total_blocks=64, block_size_tokens=16)
        planner = build_planner(settings, SHAPE, kv, graph_tokens=512)
        model: models.FittedModel = planner.model  # type: ignore[attr-defined]
        return model

    kept.write(learned())  # by an engine without: it knows nothing of launches
    assert (used(settings).name, used(settings).graph_tokens) == ("attention-graphs", 512)
    warm = models.GraphedModel({"beyond_graphs": 0.03}, graph_tokens=512)
    kept.write(warm.state())
    assert used(settings).beyond_graphs_s(513) == 0.03
    paper = settings.model_copy(update={"preset": "hygen", "static_budget_s": 0.1})
    assert used(paper).name == "hygen"


async def test_a_write_that_is_still_under_way_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that ends saves once more, while the write of the minute may hang on its disk."""
    reached, goes_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        if not reached.is_set():
            reached.set()
            goes_on.wait()
        fsync(descriptor)

    monkeypatch.setattr("weir_agent.kept_profile.os.fsync", slow)
    kept = KeptProfile(tmp_path, identity="a")
    first = asyncio.create_task(asyncio.to_thread(kept.write, learned()))
    await asyncio.to_thread(reached.wait)
    second = asyncio.create_task(asyncio.to_thread(kept.write, learned()))
    await asyncio.sleep(0.1)
    goes_on.set()
    await asyncio.gather(first, second)
    assert kept.read(model="attention") is not None


async def test_an_engine_that_cannot_tell_what_it_learned_still_ends_in_order(
    start_agent: StartAgent, tmp_path: Path
) -> None:
    class Forgetful(FakeEngine):
        async def latency_profile(self) -> Mapping[str, Any]:
            raise RuntimeError("Call to weir_latency_profile method failed")  # vLLM's wording

    engine = Forgetful()
    async with start_agent(engine) as running:
        await running.until(lambda: running.agent._serving)
        await running.stop()
    assert engine.stopped
    assert not (tmp_path / "agent" / FILE_NAME).exists()


async def test_an_agent_leaves_what_its_engine_learned(
    start_agent: StartAgent, tmp_path: Path
) -> None:
    engine = FakeEngine()
    engine.profile = learned()
    async with start_agent(engine) as running:
        await running.until(lambda: running.agent._serving)
        await running.stop()
    read = KeptProfile(tmp_path / "agent", identity=engine.identity).read(model="attention")
    assert read is not None
    assert read["model"] == engine.profile["model"]
