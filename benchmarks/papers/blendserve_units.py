"""A batch in the units that it is simulated in: many tokens, and as many steps, as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.papers.blendserve_case import Arm, Case
from benchmarks.papers.blendserve_workload import Source, Workload
from weir_engine.pool.density_tree import DensityTree, Prompts, build_tree
from weir_engine.sim.batch import BatchSet


@dataclass(frozen=True, slots=True)
class Units:
    """The coarse workload, with its prompts and their tree."""

    workload: Workload
    prompts: Prompts
    tree: DensityTree

    @classmethod
    def of(cls, case: Case) -> Units:
        """A case's."""
        coarse = case.workload.coarse(case.factor)
        prompts = coarse.prompts()
        return cls(coarse, prompts, build_tree(prompts))

    def batch(self, arm: Arm) -> BatchSet:
        """The requests that the engine runs.

        Only hashes that more than one request has are kept, except for the shuffled order: there
        all blocks compete for the cache.
        """
        coarse, prompts = self.workload, self.prompts
        shared = (coarse.system_tokens + coarse.header_tokens) // coarse.block_tokens
        if arm.order == "shuffled":
            shared = np.diff(prompts.offsets)
        offsets = np.r_[0, np.cumsum(shared)]
        at = np.arange(offsets[-1]) - np.repeat(offsets[:-1], shared)
        hashes = prompts.hashes[np.repeat(prompts.offsets[:-1], shared) + at]
        means = np.array(
            [
                float(coarse.output_tokens[coarse.source == s].mean())
                if (coarse.source == s).any()
                else 1.0
                for s in Source
            ]
        )
        expected = np.where(
            coarse.source == Source.VIDEO, coarse.output_tokens, means[coarse.source]
        )
        return BatchSet(
            prompt_tokens=prompts.tokens,
            output_tokens=coarse.output_tokens,
            expected_tokens=np.maximum(np.round(arm.reserve * expected), 1).astype(np.int64),
            hashes=hashes,
            offsets=offsets,
        )
