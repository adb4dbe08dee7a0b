"""Weir over vLLM's asynchronous scheduler, two steps in flight, with a scripted worker.

The CPU build never schedules asynchronously, so the worker is played by the test: its tokens are
known beforehand, and any that is lost, doubled or out of order shows in the output.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.engine_host import SPLIT, EngineHost, numbers, text
from weir_engine.config import Policy

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

IN_FLIGHT = 2


def token_of(request_id: str, index: int) -> int:
    return 97 + (sum(request_id.encode()) * 7 + index * 13) % 26


class Device:
    """Virtual time: small steps are launched at once and compute, large ones are launched."""

    small_s, launch_s = 0.006, 0.03

    def __init__(self) -> None:
        self.now_s = 100.0
        self._free_s = 0.0
        self._done_s: dict[int, float] = {}

    def __call__(self) -> float:
        return self.now_s

    def launch(self, output: Any) -> None:  # noqa: ANN401 - vLLM is not typed
        large = output.total_num_scheduled_tokens > 64
        self.now_s += self.launch_s if large else 0.001
        self._free_s = max(self._free_s, self.now_s) + (0.001 if large else self.small_s)
        self._done_s[id(output)] = self._free_s

    def wait_for(self, output: Any) -> None:  # noqa: ANN401
        self.now_s = max(self.now_s, self._done_s.pop(id(output), 0.0))


class Pipeline:
    """An engine loop with two steps in flight over a scheduler without a worker."""

    def __init__(
        self,
        host: EngineHost,
        settings: Mapping[str, Any],
        *,
        blocks: int,
        device: Device | None = None,
    ) -> None:
        """``device`` tells the time; without one it is the machine's."""
        from weir_agent.vllm_bridge.planner import build_planner
        from weir_agent.vllm_bridge.scheduler import build

        arguments = host.arguments(blocks=blocks)
        config = arguments["vllm_config"]
        before = config.additional_config, config.scheduler_config.async_scheduling
        config.additional_config = {"weir": {"strict": True, "over_alone": None, **settings}}
        config.scheduler_config.async_scheduling = True
        try:
            self._device = device or Device()
            clock = time.monotonic if device is None else device
            self.scheduler: Any = build(build_planner, clock=clock, **arguments)
        finally:
            config.additional_config, config.scheduler_config.async_scheduling = before
        self.driver: Any = self.scheduler.weir
        self._hasher = host.core.request_block_hasher
        self._queue: deque[tuple[Any, dict[str, list[int]]]] = deque()
        self.tokens: dict[str, list[int]] = {}
        self.outputs: Counter[str] = Counter()
        self.finished: set[str] = set()
        self.computed_steps = 0
        self.empty_steps = 0

    def add(self, name: str, prompt: tuple[int, ...], *, output: int, offline: bool) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.request import Request

        kind = RequestOutputKind.FINAL_ONLY if offline else RequestOutputKind.DELTA
        params = SamplingParams(
            temperature=0,
            max_tokens=output,
            ignore_eos=True,
            output_kind=kind,
            extra_args={"weir": {"class": "offline"}} if offline else None,
        )
        request = Request(name, list(prompt), params, None, block_hasher=self._hasher)
        self.tokens[name] = []
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.tokens.pop(name, None)

    def step(self) -> bool:
        """One turn of the loop; False when there was nothing to do."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            computed = output.total_num_scheduled_tokens > 0
            if computed:
                self._device.launch(output)
                self.scheduler.get_grammar_bitmask(output)
            self.computed_steps += computed
            self.empty_steps += not computed
            self._queue.append((output, self._sample(output)))
            if len(self._queue) < IN_FLIGHT and (computed or self.scheduler.has_requests()):
                return True
        elif not self._queue:
            return False
        self._update(*self._queue.popleft())
        return True

    def drain(self, limit: int = 4000) -> Iterator[None]:
        for _ in range(limit):
            if not self.step():
                return
            yield
        raise AssertionError(f"requests are left after {limit} steps")

    def _sample(self, output: Any) -> dict[str, list[int]]:  # noqa: ANN401 - vLLM is not typed
        sampled: dict[str, list[int]] = {}
        for name in output.num_scheduled_tokens:
            request = self.scheduler.requests[name]
            index = request.num_computed_tokens - request.num_prompt_tokens
            sampled[name] = [] if request.is_prefill_chunk else [token_of(name, index)]
        return sampled

    def _update(self, output: Any, sampled: dict[str, list[int]]) -> None:  # noqa: ANN401
        from vllm.v1.outputs import ModelRunnerOutput

        self._device.wait_for(output)
        names = list(output.num_scheduled_tokens)
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[sampled[name] for name in names],
        )
        for engine_outputs in self.scheduler.update_from_output(output, answer).values():
            for result in engine_outputs.outputs:
                self.outputs[result.request_id] += 1
                if result.request_id in self.tokens:
                    self.tokens[result.request_id] += result.new_token_ids
                if result.finish_reason is not None:
                    self.finished.add(result.request_id)


def expected(name: str, output: int) -> list[int]:
    return [token_of(name, index) for index in range(output)]


def test_the_base_is_asynchronous(host: EngineHost) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    pipeline = Pipeline(host, {}, blocks=64)
    assert isinstance(pipeline.scheduler, AsyncScheduler)


def test_two_steps_are_in_flight_and_no_token_is_lost(host: EngineHost) -> None:
    pipeline = Pipeline(host, {}, blocks=64)
    rng = numbers(1)
    pipeline.add("one", text(rng, 100), output=10, offline=False)
    for _ in pipeline.drain():
        pass
    assert pipeline.tokens == {"one": expected("one", 10)}
    assert pipeline.computed_steps == 10  # no step beyond the last token
    assert pipeline.driver.telemetry()["divergences"] == 0


def test_offline_tokens_come_many_at_a_time_and_online_ones_as_they_are_made(
    host: EngineHost,
) -> None:
    pipeline = Pipeline(host, {"slos": []}, blocks=64)
    rng = numbers(1)
    pipeline.driver.set_policy(Policy(offline_kv_blocks=48, offline_seq_slots=4))
    pipeline.add("line", text(rng, 40), output=50, offline=True)
    pipeline.add("chat", text(rng, 40), output=50, offline=False)
    for _ in pipeline.drain():
        pass
    assert pipeline.tokens == {name: expected(name, 50) for name in ("line", "chat")}
    assert pipeline.outputs == {"chat": 50, "line": 5}  # 1, 16, 16, 16, and the last


def test_a_long_launch_counts_for_the_step_that_it_launches(
    host: EngineHost, tmp_path: Path
) -> None:
    steps = tmp_path / "steps.jsonl"
    pipeline = Pipeline(host, {"step_file": str(steps)}, blocks=64, device=Device())
    rng = numbers(1)
    pipeline.add("first", text(rng, 100), output=60, offline=False)
    for count, _ in enumerate(pipeline.drain()):
        if count % 12 == 11 and count < 50:
            pipeline.add(f"long-{count}", text(rng, 200), output=4, offline=False)
    pipeline.scheduler.shutdown()
    recorded = [json.loads(line) for line in steps.read_text().splitlines()]
    timed = [step for step in recorded if "seconds" in step]
    prompts = [step["seconds"] for step in timed if step["prefills"]]
    decodes = [step["seconds"] for step in timed if not step["prefills"]]
    assert len(prompts) >= 4
    assert min(prompts) >= Device.launch_s
    assert max(decodes) <= 2 * Device.small_s


@pytest.mark.parametrize("seed", range(6))
def test_random_workloads_with_preemption_do_exactly_what_is_planned(
    host: EngineHost, seed: int
) -> None:
    """Invariant 4 and strict mode, with stale output of preempted requests in flight."""
    rng = numbers(100 + seed)
    policy = {"offline_kv_blocks": 40, "offline_seq_slots": 8}
    profile = SPLIT if seed % 2 else None
    pipeline = Pipeline(host, {"policy": policy, "profile": profile}, blocks=41)
    wanted = feed(pipeline, rng)
    assert pipeline.tokens == {name: expected(name, length) for name, length in wanted.items()}
    telemetry = pipeline.driver.telemetry()
    assert telemetry["divergences"] == 0
    assert telemetry["free_kv_blocks"] == telemetry["total_blocks"]
    assert telemetry["requests"] == 0


def feed(pipeline: Pipeline, rng: random.Random) -> dict[str, int]:
    """Random requests and aborts; answers with the output length of those that ran to the end."""
    documents = [text(rng, 300) for _ in range(2)]
    wanted: dict[str, int] = {}
    for turn in range(300):
        if len(wanted) < 40 and rng.random() < 0.3:
            name, offline = f"r{turn}", rng.random() < 0.6
            prompt = rng.choice(documents) if rng.random() < 0.5 else ()
            prompt += text(rng, rng.randrange(1, 300))
            wanted[name] = rng.randrange(1, 20)
            pipeline.add(name, prompt, output=wanted[name], offline=offline)
        if rng.random() < 0.02 and wanted:
            name = rng.choice(list(wanted))
            if name not in pipeline.finished:
                del wanted[name]
                pipeline.abort(name)
        pipeline.step()
    for _ in pipeline.drain():
        pass
    return wanted


def test_steps_are_timed_only_behind_another_one(host: EngineHost) -> None:
    """What is measured after idling says nothing about the step."""
    pipeline = Pipeline(host, {}, blocks=64)
    pipeline.add("one", text(numbers(3), 50), output=6, offline=False)
    for _ in pipeline.drain():
        pass
    assert pipeline.driver.telemetry()["steps"] == 6
    assert 0 < observed_steps(pipeline) < 6


def observed_steps(pipeline: Pipeline) -> int:
    """Steps that the latency model learnt from."""
    steps: int = pipeline.driver.planner.model.observed_steps
    return steps
