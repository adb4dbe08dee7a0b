"""Recorded steps of the engine: what the file says, when it ends; it never stops the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.engine_host import Ask, EngineHost, numbers, text
from weir_agent.vllm_bridge.step_file import StepFile
from weir_agent.vllm_bridge.steps import StepTiming
from weir_engine.config import EngineShape
from weir_engine.ids import RequestClass, RequestId
from weir_engine.latency.features import EMPTY_SHAPE
from weir_engine.request import Request
from weir_engine.sched.plan import StepPlan, Work
from weir_engine.sim.recording import Recording

SHAPE = EngineShape(
    block_size_tokens=32,
    total_blocks=8,
    max_batched_tokens=64,
    max_seqs=4,
    max_model_len_tokens=256,
)


def plan(*work: Work) -> StepPlan:
    return StepPlan(step=1, now_s=0.0, work=work, shape=EMPTY_SHAPE, online_shape=EMPTY_SHAPE)


def known(name: str, computed_tokens: int) -> dict[str, Request]:
    request = Request(
        id=RequestId(name),
        klass=RequestClass.ONLINE,
        arrival_s=0.0,
        prompt_tokens=100,
        max_output_tokens=10,
    )
    request.computed_tokens = computed_tokens
    return {name: request}


def timing(start_s: float, end_s: float, *, timed: bool = True) -> StepTiming:
    return StepTiming(started_s=start_s, ended_s=end_s, timed=timed)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_start_after_a_kill_begins_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    StepFile(path, SHAPE).close()
    whole = path.read_text()
    path.write_text(f'{whole}{{"prefills":[[40,')
    StepFile(path, SHAPE).close()
    assert path.read_text() == f'{whole}{{"prefills":[[40,\n{whole}'
    assert Recording.read(path.read_text().splitlines()).shape == SHAPE


def test_a_line_has_sizes_seconds_and_the_pause_of_a_busy_engine(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    file = StepFile(path, SHAPE)
    admitted = Work(request_id=RequestId("a"), tokens=40, admitted=True, hit_tokens=32)
    requests = known("a", 0)
    steps = [plan(admitted), *(plan(Work(request_id=RequestId("a"), tokens=1)) for _ in range(3))]
    times = [timing(1.0, 1.5), timing(1.6, 1.7), timing(1.8, 1.9, timed=False), timing(4.0, 4.5)]
    for number, (step, time) in enumerate(zip(steps, times, strict=True)):
        if number == 3:
            file.sent(None, requests)  # nothing could be planned for a while
        file.sent(step, requests)
        requests["a"].computed_tokens = 72 + number
        file.ended(step, time, more=True)
    file.close()
    header, *found = rows(path)
    assert header["engine"]["total_blocks"] == 8
    assert found == [
        {
            "prefills": [[40, 32]],
            "decodes": [],
            "distinct_tokens": 32,
            "seconds": 0.5,
            "pause_s": None,
        },
        {
            "prefills": [],
            "decodes": [73],
            "distinct_tokens": 72,
            "seconds": 0.1,
            "pause_s": 0.1,
        },
        {
            "prefills": [],
            "decodes": [75],
            "distinct_tokens": 74,
            "seconds": 0.5,
            "pause_s": None,
        },
    ]


def test_what_several_requests_share_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    file = StepFile(path, SHAPE)
    requests = {**known("a", 70), **known("b", 80)}
    for number, request in enumerate(requests.values()):
        request.block_hashes.extend([7, 10 + number])
    works = [Work(request_id=RequestId(name), tokens=1) for name in "ab"]
    step = plan(*works)
    file.sent(step, requests)
    file.ended(step, timing(0.0, 1.0), more=False)
    file.close()
    [found] = Recording.read(path.read_text().splitlines()).steps
    assert found.decodes == (71, 81)
    assert found.distinct_tokens == 70 + 80 - 32


def test_steps_in_flight_end_in_order_and_a_lost_one_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    file = StepFile(path, SHAPE)
    lost, first, second = (plan(Work(request_id=RequestId("a"), tokens=n)) for n in (5, 6, 7))
    for step in (lost, first, second):
        file.sent(step, known("a", 0))
    file.ended(first, timing(0.0, 1.0), more=False)
    file.ended(second, timing(1.0, 2.0), more=False)
    file.ended(second, timing(2.0, 3.0), more=False)  # it had ended
    file.close()
    assert [row["prefills"] for row in rows(path)[1:]] == [[[6, 0]], [[7, 0]]]


def test_a_full_file_ends_the_recording_and_a_restart_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    for _ in range(2):
        file = StepFile(path, SHAPE, most_bytes=4000)
        for _ in range(200):
            step = plan(Work(request_id=RequestId("a"), tokens=5))
            file.sent(step, known("a", 0))
            file.ended(step, timing(0.0, 1.0), more=False)
        file.close()
    assert path.stat().st_size < 4000 + 2 * 32 * 80
    recording = Recording.read(path.read_text().splitlines())
    assert recording.shape == SHAPE
    assert len(recording.steps) > 32


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "steps", Path("/dev/full")):
        file = StepFile(path, SHAPE)
        for _ in range(64):
            step = plan(Work(request_id=RequestId("a"), tokens=5))
            file.sent(step, known("a", 0))
            file.ended(step, timing(0.0, 1.0), more=False)
        file.close()
    assert not (tmp_path / "missing").exists()


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_a_real_engines_steps_add_up_to_what_it_computed(host: EngineHost, tmp_path: Path) -> None:
    path = tmp_path / "steps"
    host.use_weir({"step_file": str(path)})
    rng = numbers(3)
    asks = [Ask(id=f"r{i}", prompt=text(rng, 40 + 90 * i), output=6) for i in range(6)]
    host.run(asks)
    host.driver.close()
    recording = Recording.read(path.read_text().splitlines())
    assert recording.shape.block_size_tokens == 32
    assert all(0 < step.seconds < 60 for step in recording.steps)
    # The first step of an engine is not timed: it holds prompts only, so all the decodes are there.
    decodes = [context for step in recording.steps for context in step.decodes]
    assert sorted(decodes) == sorted(
        len(ask.prompt) + number for ask in asks for number in range(1, ask.output)
    )
    assert any(step.pause_s is not None and step.pause_s > 0 for step in recording.steps)
    assert b"r1" not in path.read_bytes()
