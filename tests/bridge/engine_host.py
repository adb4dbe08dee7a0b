"""A real vLLM engine in the test's own process, whose scheduler each test replaces.

Loading the model takes seconds and swapping the scheduler takes none: every test gets a scheduler
of its own over one model.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir_agent.sample_model import SampleModelShape, write_sample_model

if TYPE_CHECKING:
    from weir_agent.vllm_bridge.driver import StepDriver

BLOCK_TOKENS = 32
BLOCKS = 256
MODEL = SampleModelShape(
    layers=2, hidden_size=128, intermediate_size=256, heads=4, kv_heads=2, max_length_tokens=1024
)
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}

# A latency profile in which a decode takes so long beside a prompt that both get their own steps.
SPLIT = {"model": "attention", "coefficients": {"mixed_context": 1.0}, "residuals": {}}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of a test: prompt as token ids, greedy by default, exactly ``output`` tokens."""

    id: str
    prompt: tuple[int, ...]
    output: int = 8
    offline: bool = False
    tag: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


def numbers(seed: int) -> random.Random:
    """A source of random numbers for test data."""
    return random.Random(seed)  # noqa: S311 - test data


def text(rng: random.Random, tokens: int) -> tuple[int, ...]:
    """Random letters; a token is a byte."""
    return tuple(rng.randrange(97, 123) for _ in range(tokens))


class EngineHost:
    """The engine. ``use_stock`` and ``use_weir`` give it a fresh scheduler with an empty cache."""

    def __init__(self, folder: Path) -> None:
        os.environ.update(ENVIRONMENT)
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        write_sample_model(folder, MODEL)
        self.engine: Any = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(folder),
                dtype="float32",
                enforce_eager=True,
                num_gpu_blocks_override=BLOCKS,
                block_size=BLOCK_TOKENS,
                max_num_seqs=16,
                max_num_batched_tokens=512,
                max_model_len=1024,
                scheduling_policy="priority",
                disable_log_stats=False,
            )
        )
        self.core: Any = self.engine.engine_core.engine_core
        self._stock = self.core.scheduler

    def close(self) -> None:
        """Stop the engine."""
        self.engine.engine_core.shutdown()

    @property
    def scheduler(self) -> Any:  # noqa: ANN401 - vLLM is not typed
        """The scheduler in use."""
        return self.core.scheduler

    @property
    def driver(self) -> StepDriver:
        """Weir's side of the scheduler in use."""
        driver: StepDriver = self.core.scheduler.weir
        return driver

    def arguments(self, *, blocks: int = BLOCKS) -> dict[str, Any]:
        """What vLLM passes to a scheduler class."""
        stock = self._stock
        return {
            "vllm_config": stock.vllm_config,
            "kv_cache_config": dataclasses.replace(stock.kv_cache_config, num_blocks=blocks),
            "structured_output_manager": self.core.structured_output_manager,
            "block_size": stock.block_size,
            "hash_block_size": stock.hash_block_size,
            "log_stats": True,
        }

    def use_stock(self, *, blocks: int = BLOCKS) -> None:
        """Vllm's own scheduler."""
        from vllm.v1.core.sched.scheduler import Scheduler

        self._swap(Scheduler(**self.arguments(blocks=blocks)))

    def use_weir(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        blocks: int = BLOCKS,
        factory: Callable[..., Any] | None = None,
    ) -> StepDriver:
        """Weir's scheduler, strict, with nothing that bounds a step; answers with its driver."""
        from weir_agent.vllm_bridge.planner import build_planner
        from weir_agent.vllm_bridge.scheduler import build

        arguments = self.arguments(blocks=blocks)
        config = arguments["vllm_config"]
        before = config.additional_config
        config.additional_config = {
            "weir": {"strict": True, "over_alone": None, **(settings or {})}
        }
        try:
            self._swap(build(factory or build_planner, **arguments))
        finally:
            config.additional_config = before
        return self.driver

    def add(self, ask: Ask) -> None:
        """Hand a request to the engine."""
        from vllm import SamplingParams

        tag = dict(ask.tag)
        if ask.offline:
            tag["class"] = "offline"
        params = SamplingParams(
            max_tokens=ask.output,
            ignore_eos=True,
            extra_args={"weir": tag} if tag else None,
            **{"temperature": 0, **ask.params},
        )
        prompt = {"prompt_token_ids": list(ask.prompt)}
        self.engine.add_request(ask.id, prompt, params)

    def step(self) -> dict[str, tuple[int, ...]]:
        """One step; the token ids of the requests that finished in it."""
        return {
            result.request_id: tuple(result.outputs[0].token_ids)
            for result in self.engine.step()
            if result.finished
        }

    def steps(self, limit: int = 5000) -> Iterator[dict[str, tuple[int, ...]]]:
        """Step until nothing is left.

        Raises:
            AssertionError: it takes more than ``limit`` steps.
        """
        for _ in range(limit):
            if not self.engine.has_unfinished_requests():
                return
            weir = getattr(self.scheduler, "weir", None)
            if weir is not None and weir.parking.parked:
                time.sleep(0.001)  # vLLM's own loop waits until it is woken
            yield self.step()
        raise AssertionError(f"requests are left after {limit} steps")

    def run(self, asks: Sequence[Ask]) -> dict[str, tuple[int, ...]]:
        """All requests at once, to their end."""
        for ask in asks:
            self.add(ask)
        done: dict[str, tuple[int, ...]] = {}
        for finished in self.steps():
            done.update(finished)
        return done

    def ends(self, count: int) -> dict[str, tuple[Any, Any]]:
        """Finish reason and stop reason of the next ``count`` requests that end within a minute."""
        ends: dict[str, tuple[Any, Any]] = {}
        deadline_s = time.monotonic() + 60
        while len(ends) < count and time.monotonic() < deadline_s:
            for result in self.engine.step():
                if result.finished:
                    output = result.outputs[0]
                    ends[result.request_id] = (output.finish_reason, output.stop_reason)
        return ends

    def abort_all(self) -> None:
        """Leave nothing behind."""
        ids = list(self.engine.output_processor.request_states)
        if ids:
            self.engine.abort_request(ids, internal=True)

    def _swap(self, scheduler: object) -> None:
        self.abort_all()
        for _ in range(2):  # the worker hears of what ended
            self.engine.step()
        self.core.scheduler = scheduler
