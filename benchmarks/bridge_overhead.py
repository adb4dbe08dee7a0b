"""What Weir's scheduler costs an engine that serves online requests only.

One real engine in this process, whose model and worker run under vLLM's own scheduler and under
Weir's in turns, a burst of requests each. Two engine processes of one kind differ from each other,
and a shared machine from minute to minute, by more than the scheduler costs: here both meet both.
What is timed is the engine core's own step (schedule, compute, process the outputs), nothing of
HTTP. With one client the fixed cost of a step weighs most. `python -m benchmarks.bridge_overhead`
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from benchmarks import bounds
from benchmarks.awake import awake
from benchmarks.claims import Claim, render, write_results
from benchmarks.colocation.setup import (
    BATCHED_TOKENS,
    BLOCK_TOKENS,
    BLOCKS,
    MODEL_LEN,
    SEQUENCES,
    environment,
)
from weir_agent.sample_model import write_sample_model
from weir_cli.loadlab.processes import available_cores
from weir_cli.loadlab.processor import native_dtype

PROMPT_TOKENS: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """So many requests at once, each of so many output tokens; ``pairs`` bursts of each kind."""

    clients: int
    output_tokens: int
    pairs: int


# The machine changes within seconds: short bursts in turns, and many of them.
FULL = Load(clients=16, output_tokens=48, pairs=64)
ALONE = Load(clients=1, output_tokens=48, pairs=400)
LOADS: Final = {"": FULL, "one-client-": ALONE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Burst:
    """Seconds of the engine core a token, and of its steps in which every request decodes."""

    token_s: float
    tbt_s: float


class Engine:
    """A vLLM engine whose scheduler is changed between two bursts."""

    def __init__(self, model: Path) -> None:
        # The servers' environment, but for cores: this process has chosen its own.
        os.environ.update(environment() | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"})
        # vLLM reads its environment as it is imported.
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

        from weir_agent.vllm_bridge.scheduler import make_scheduler  # noqa: PLC0415

        self._engine: Any = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(model),
                dtype=native_dtype(),
                enforce_eager=True,
                num_gpu_blocks_override=BLOCKS,
                block_size=BLOCK_TOKENS,
                max_num_seqs=SEQUENCES,
                max_num_batched_tokens=BATCHED_TOKENS,
                max_model_len=MODEL_LEN,
                scheduling_policy="priority",
                disable_log_stats=False,
            )
        )
        self._core: Any = self._engine.engine_core.engine_core
        self._step = self._core.step_fn
        self._core.step_fn = self._timed_step
        self._steps_s: list[float] = []
        self.stock: Any = self._core.scheduler
        arguments = {
            "vllm_config": self.stock.vllm_config,
            "kv_cache_config": self.stock.kv_cache_config,
            "structured_output_manager": self._core.structured_output_manager,
            "block_size": self.stock.block_size,
            "hash_block_size": self.stock.hash_block_size,
            "log_stats": True,
        }
        self.weir = make_scheduler(**arguments)
        self._sent = 0
        gc.collect()
        gc.freeze()  # as an engine process does once it has started

    def burst(self, scheduler: object, load: Load, source: random.Random) -> Burst:
        """Fresh prompts, all at once, under a scheduler."""
        from vllm import SamplingParams  # noqa: PLC0415

        self._core.scheduler = scheduler
        params = SamplingParams(temperature=0, max_tokens=load.output_tokens, ignore_eos=True)
        for _ in range(load.clients):
            self._sent += 1
            prompt = [source.randrange(97, 123) for _ in range(PROMPT_TOKENS)]
            self._engine.add_request(str(self._sent), {"prompt_token_ids": prompt}, params)
        self._steps_s.clear()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        burst = burst_of(self._steps_s, load)
        while self._core.scheduler.has_requests():  # the worker hears of those that ended
            self._core.step_fn()
        return burst

    def close(self) -> None:
        """Stop."""
        self._engine.engine_core.shutdown()

    def _timed_step(self) -> Any:  # noqa: ANN401 - vLLM is not typed
        started_s = time.perf_counter()
        result = self._step()
        self._steps_s.append(time.perf_counter() - started_s)
        return result


def burst_of(steps_s: Sequence[float], load: Load) -> Burst:
    """From all steps of a burst, in order. The last in which each request still decodes are taken.

    Prompts may take several steps, so that some requests end before the others.
    """
    tokens = load.clients * load.output_tokens
    prefill_steps = -(-load.clients * PROMPT_TOKENS // BATCHED_TOKENS)
    decodes_s = steps_s[prefill_steps : load.output_tokens]
    return Burst(token_s=sum(steps_s) / tokens, tbt_s=sum(decodes_s) / len(decodes_s))


Pairs = list[tuple[Burst, Burst]]


def compare(engine: Engine, loads: Mapping[str, Load]) -> dict[str, Pairs]:
    """Pairs of bursts by load, stock and Weir, in alternating order; the first of each warms up."""
    measured: dict[str, Pairs] = {}
    for name, load in loads.items():
        measured[name] = [_pair(engine, load, number) for number in range(load.pairs + 1)][1:]
    return measured


def _pair(engine: Engine, load: Load, number: int) -> tuple[Burst, Burst]:
    schedulers = (engine.stock, engine.weir)
    bursts = {}
    for index in (0, 1) if number % 2 else (1, 0):
        source = random.Random(f"{number} {index}")  # noqa: S311 - load, not secrets
        bursts[index] = engine.burst(schedulers[index], load, source)
    return bursts[0], bursts[1]


def claims_of(measured: Mapping[str, Pairs], loads: Mapping[str, Load]) -> list[Claim]:
    """Overhead in percent, by load: the median over pairs, with their quartiles."""
    return [claim for name, load in loads.items() for claim in _claims(name, load, measured[name])]


def _claims(prefix: str, load: Load, pairs: Pairs) -> list[Claim]:
    tokens = [100 * (weir.token_s / stock.token_s - 1) for stock, weir in pairs]
    gaps = [100 * (weir.tbt_s / stock.tbt_s - 1) for stock, weir in pairs]
    return [
        Claim(
            id=f"bridge/{prefix}{name}",
            what=f"{what} added by Weir's scheduler to an online-only engine, {load.clients} "
            f"client{'s' * (load.clients > 1)} (spread: quartiles of {len(pairs)} pairs)",
            unit="%",
            value=median(values),
            low=quantiles(values, n=4)[0],
            high=quantiles(values, n=4)[2],
            target="<= 3",
        )
        for name, what, values in (
            ("time-per-token", "time per output token", tokens),
            ("mean-tbt", "mean TBT", gaps),
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes `results/bridge_overhead.json`."""
    parser = argparse.ArgumentParser(description="cost of Weir's scheduler in an online-only vLLM")
    parser.add_argument("--pairs", type=bounds.count, help="pairs of bursts; default: by load")
    parser.add_argument("--keep-awake", action="store_true", help="no core halts while idle")
    given = parser.parse_args(arguments)
    if given.pairs is not None and given.pairs < 2:
        parser.error("--pairs must be 2 or more")
    loads = {
        name: load if given.pairs is None else replace(load, pairs=given.pairs)
        for name, load in LOADS.items()
    }
    cores = available_cores()
    os.sched_setaffinity(0, {cores.engine})
    with tempfile.TemporaryDirectory() as name, awake(cores.both if given.keep_awake else ()):
        write_sample_model(Path(name))
        engine = Engine(Path(name))
        try:
            measured = compare(engine, loads)
        finally:
            engine.close()
    claims = claims_of(measured, loads)
    command = shlex.join(
        ["python", "-m", "benchmarks.bridge_overhead", *(arguments or sys.argv[1:])]
    )
    write_results(
        "bridge_overhead",
        claims,
        command=command,
        seeds=[],
        more={
            "pairs": {
                str(load.clients): [
                    {"stock": asdict(stock), "weir": asdict(weir)} for stock, weir in measured[name]
                ]
                for name, load in loads.items()
            }
        },
    )
    print(render(claims))
    return 0


if __name__ == "__main__":
    sys.exit(main())
