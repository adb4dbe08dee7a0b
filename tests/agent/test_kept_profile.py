"""The latency model outlives the engine that learned it, and never another one's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import StartAgent
from tests.support.fake_engine import FakeEngine
from weir_agent.kept_profile import FILE_NAME, KeptProfile
from weir_engine.latency import models
from weir_engine.latency.features import EMPTY_SHAPE


def learned() -> dict[str, object]:
    """The state of a model that saw some steps."""
    model = models.create()
    for tokens in range(1, 200):
        model.update(EMPTY_SHAPE.with_prefill(tokens, 0), 0.002 + 1e-5 * tokens)
    return dict(model.state())


def test_what_was_written_is_read_by_the_same_engine_only(tmp_path: Path) -> None:
    profile = learned()
    KeptProfile(tmp_path, identity="a").write(profile)
    read = KeptProfile(tmp_path, identity="a").read()
    assert read is not None
    warmed = models.create(str(read["model"]), read)
    shape = EMPTY_SHAPE.with_prefill(100, 0)
    assert warmed.predict(shape) == pytest.approx(0.003, rel=0.1)
    assert KeptProfile(tmp_path, identity="b").read() is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"identity": "a"}', b'{"identity": "a", "profile": {"model": "no"}}'],
)
def test_a_file_that_is_no_profile_is_no_obstacle(tmp_path: Path, content: bytes) -> None:
    kept = KeptProfile(tmp_path, identity="a")
    assert kept.read() is None
    (tmp_path / FILE_NAME).write_bytes(content)
    assert kept.read() is None
    profile = learned()
    kept.write(profile)
    assert kept.read() is not None


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
    read = KeptProfile(tmp_path / "agent", identity=engine.identity).read()
    assert read is not None
    assert read["model"] == engine.profile["model"]
