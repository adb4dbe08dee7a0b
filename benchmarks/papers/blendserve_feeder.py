"""How BlendServe's batch reaches the engine: a sample first, then the rest from both ends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.blendserve_case import Case
from benchmarks.papers.blendserve_workload import Source
from weir_engine.ids import RequestId
from weir_engine.pool.blend_order import (
    SAMPLED_SHARE,
    BlendOrder,
    blend,
    estimate_outputs,
    sample_requests,
)
from weir_engine.pool.density_tree import build_tree
from weir_engine.pool.dual_scan import BlendHint, DualScanOrder, Side
from weir_engine.request import Request
from weir_engine.sim.batch import BatchSet
from weir_engine.sim.records import RequestRecord
from weir_engine.sim.workload import RequestSpec

WINDOW = 1024
"""Requests that wait in the engine, on each side."""


class BlendFeeder:
    """Runs a sample of the batch, then the rest from both ends of the density order.

    Source: BlendServe §3: the overview's steps 1 to 4, in that order.
    """

    def __init__(self, case: Case, batch: BatchSet) -> None:
        self._case = case
        self._batch = batch
        # Densities of the batch as it is, not in the units that it is simulated in: an exam's two
        # tokens of output would count as a whole unit of them.
        self._prompts = prompts = case.workload.prompts()
        self._tree = tree = build_tree(prompts)
        known = case.workload.source == Source.VIDEO
        rng = np.random.default_rng((case.seed, 7))
        self._sampled = sample_requests(len(prompts), known=known, share=SAMPLED_SHARE, rng=rng)
        self._seen = self._sampled | known
        dfs = tree.depth_first(np.zeros(tree.nodes))
        self._sample = iter(dfs[self._sampled[dfs]].tolist())
        self._hints: dict[RequestId, BlendHint] = {}
        self._order: BlendOrder | None = None
        self._left = self._right = 0
        self.pool = DualScanOrder(target_density=1.0, hint=self._hint)

    def _hint(self, request: Request) -> BlendHint:
        return self._hints.pop(request.id)

    def take(self, *, now_s: float, unfinished: int) -> list[RequestSpec]:  # noqa: ARG002
        """Tops both sides up; between sample and rest the engine runs dry."""
        if self._order is None:
            given = self._take_sample()
            if given or unfinished:
                return given
            self._order = self._plan()
            self._right = len(self._order)
            self.pool.set_target(self._order.target_density)
        return [*self._take_side(self._order, Side.LEFT), *self._take_side(self._order, Side.RIGHT)]

    def online_ended(self, record: RequestRecord) -> None:
        """Makes no difference."""

    def _take_sample(self) -> list[RequestSpec]:
        missing = WINDOW - len(self.pool)
        return [
            self._spec(number, BlendHint(side=Side.LEFT, density=1.0, held_tokens=1.0))
            for _, number in zip(range(missing), self._sample, strict=False)
        ]

    def _plan(self) -> BlendOrder:
        outputs = estimate_outputs(
            self._tree,
            outputs=self._case.workload.output_tokens.astype(np.float64),
            seen=self._seen,
        )
        order = blend(self._tree, self._prompts, outputs=outputs, model=self._case.model)
        rest = ~self._sampled[order.requests]
        self._held = self._held_tokens(outputs)
        return BlendOrder(
            requests=order.requests[rest],
            density=order.density[rest],
            compute_s=order.compute_s[rest],
            memory_s=order.memory_s[rest],
            family=order.family[rest],
            target_density=order.target_density,
        )

    def _held_tokens(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """KV that each request reads in a step on average, over the steps that it is there.

        A planned step stands for many: who needs two of them is simulated as if it stayed for all.
        """
        factor = self._case.factor
        stays = (np.maximum(outputs - 1, 0) / factor).round() * factor + factor
        return (self._prompts.tokens + outputs / 2) * outputs / stays

    def _take_side(self, order: BlendOrder, side: Side) -> Iterator[RequestSpec]:
        missing = WINDOW - self.pool.waiting(side)
        for _ in range(min(missing, self._right - self._left)):
            if side is Side.LEFT:
                place, self._left = self._left, self._left + 1
            else:
                place = self._right = self._right - 1
            number = int(order.requests[place])
            hint = BlendHint(
                side=side,
                density=float(order.density[place]),
                held_tokens=float(self._held[number]),
            )
            yield self._spec(number, hint)

    def _spec(self, number: int, hint: BlendHint) -> RequestSpec:
        spec = self._batch.spec(number)
        self._hints[spec.id] = hint
        return spec
