"""The prefix tree of a large batch: processor time and memory to build, sort and split it.

The batch is BlendServe's trace 1, from the data folder. `python -m benchmarks.tree --data FOLDER`
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import bounds
from benchmarks.claims import Claim, render, write_results
from benchmarks.papers.blendserve_workload import TRACES, Lengths, mix
from weir_engine.pool.blend_order import blend, estimate_outputs, sample_requests
from weir_engine.pool.density import LLAMA_8B_A100
from weir_engine.pool.density_tree import Prompts, build_tree
from weir_engine.pool.replica_split import PlacedWork, split_across

REQUESTS = 400_000
_REPLICAS = 64
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds of processor time by part, and bytes: of the prompts' hashes, and at the peak."""

    build_s: float
    order_s: float
    split_s: float
    nodes: int
    blocks: int
    hash_bytes: int
    peak_bytes: int


def measure(data: Path, requests: int, seed: int) -> Measured:
    """One batch, in this process: the peak covers the prompts and everything made of them."""
    rng = np.random.default_rng(seed)
    workload = mix(
        Lengths.read(data), TRACES["trace1"], requests=requests, model=LLAMA_8B_A100, rng=rng
    )
    made = workload.prompts()
    # A copy in one piece, so that the peak below is of what follows and not of making the batch.
    prompts = Prompts(
        hashes=made.hashes.copy(),
        offsets=made.offsets,
        tokens=made.tokens,
        block_size_tokens=made.block_size_tokens,
    )
    outputs = workload.output_tokens.astype(np.float64)
    seen = sample_requests(requests, known=np.zeros(requests, dtype=np.bool_), share=0.01, rng=rng)
    started_s = time.process_time()
    tree = build_tree(prompts)
    built_s = time.process_time()
    expected = estimate_outputs(tree, outputs=outputs, seen=seen)
    order = blend(tree, prompts, outputs=expected, model=LLAMA_8B_A100)
    ordered_s = time.process_time()
    work = PlacedWork(compute_s=order.compute_s, memory_s=order.memory_s, family=order.family)
    split_across(work, [1.0] * _REPLICAS)
    return Measured(
        build_s=built_s - started_s,
        order_s=ordered_s - built_s,
        split_s=time.process_time() - ordered_s,
        nodes=tree.nodes,
        blocks=int(prompts.hashes.size),
        hash_bytes=int(prompts.hashes.nbytes),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures each seed in a process of its own and writes `results/tree.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of traces and texts")
    parser.add_argument("--requests", type=bounds.count, default=REQUESTS)
    parser.add_argument("--repeats", type=bounds.count, default=3)
    given = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    runs = []
    for seed in range(1, given.repeats + 1):
        with context.Pool(1) as pool:
            runs.append(pool.apply(measure, (given.data, given.requests, seed)))
    claims = [
        _claim("tree/build", "prefix tree of {n} requests, processor time", "s", "<= 30",
               [run.build_s for run in runs], given.requests),
        _claim("tree/order", "sampling estimates, sort and node split of it, processor time", "s",
               None, [run.order_s for run in runs], given.requests),
        _claim("tree/split", f"its split across {_REPLICAS} replicas, processor time", "s", None,
               [run.split_s for run in runs], given.requests),
        _claim("tree/memory", "peak memory of the process, prompts' hashes included", "GiB",
               "<= 2", [run.peak_bytes / _GIB for run in runs], given.requests),
        _claim("tree/hashes", "of which the prompts' block hashes", "GiB", None,
               [run.hash_bytes / _GIB for run in runs], given.requests),
    ]  # fmt: skip
    command = shlex.join(["python", "-m", "benchmarks.tree", "--data", "DATA"])
    if given.requests == REQUESTS:
        write_results("tree", claims, command=command, seeds=list(range(1, given.repeats + 1)))
    print(render(claims))
    return 0


def _claim(
    claim_id: str, what: str, unit: str, target: str | None, values: list[float], requests: int
) -> Claim:
    ordered = sorted(values)
    return Claim(
        id=claim_id,
        what=what.format(n=f"{requests:,}"),
        unit=unit,
        value=ordered[len(ordered) // 2],
        low=ordered[0],
        high=ordered[-1],
        target=target,
    )


if __name__ == "__main__":
    sys.exit(main())
