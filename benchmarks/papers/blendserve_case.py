"""What a run of BlendServe's comparison starts from, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.papers.blendserve_workload import Workload
from weir_engine.pool.density import DensityModel
from weir_engine.sim.profile_cost import Backend, Interference
from weir_engine.sim.profiles import HardwareProfile

RESERVE = 0.5
"""Part of its expected output that a request's memory is kept for where nothing looks ahead.

No other part is better on more than one of two traces, for DFS or for the blend: see docs/papers.
"""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to run the batch.

    ``order``: ``dfs``, ``shuffled``, ``blend`` (the dual scanner) or ``paced`` (Weir's, which falls
    back to ``dfs``). ``stock``: vLLM's rules instead of Weir's scheduler. ``weir``: the preset of
    that name. ``multiple``: step sizes in multiples of so many tokens. ``reserve``: the part of its
    expected output that KV memory is kept for when a request is admitted.
    """

    name: str
    order: str
    backend: Backend
    stock: bool = False
    weir: bool = False
    multiple: int = 1
    reserve: float = 1.0
    max_seqs: int = 1024


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload on a device. ``factor``: engine steps that one planned step stands for."""

    workload: Workload
    profile: HardwareProfile
    model: DensityModel
    kv_tokens: int
    factor: int
    interference: Interference
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to: seconds of simulated time, and what was shared.

    ``sharing``: prompt tokens found in the cache at first admission, over all prompt tokens;
    ``best_sharing`` what an unbounded cache would find. ``optimum_s``: both lanes at once all the
    time, with interference, all prompts shared as well as can be and dense layers in full steps;
    ``bound_s``: the same with the weights, read in as few steps as the longest output and the KV
    memory allow; ``reached_optimum_s``: with dense layers as the run's steps computed them.
    """

    tokens: int
    seconds: float
    sharing: float
    best_sharing: float
    steps: int
    preemptions: int
    compute_s: float
    memory_s: float
    optimum_s: float
    bound_s: float
    reached_optimum_s: float

    @property
    def tokens_s(self) -> float:
        """Input and output tokens a second, as the paper counts throughput."""
        return self.tokens / self.seconds
