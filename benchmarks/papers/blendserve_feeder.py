"""How a batch reaches the engine: a sample first, then the rest in the order of density."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

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
from weir_engine.pool.blend_work import (
    Ahead,
    BlendWork,
    MemoryLane,
    Scan,
    context_read_tokens,
)
from weir_engine.pool.density_tree import build_tree
from weir_engine.pool.dual_scan import BlendHint, DualScanOrder, Side
from weir_engine.pool.paced_blend import PacedBlendOrder
from weir_engine.request import Request
from weir_engine.sim.batch import BatchSet
from weir_engine.sim.records import RequestRecord
from weir_engine.sim.workload import RequestSpec

WINDOW = 1024
"""Requests that wait in the engine, on each side."""


Hint = TypeVar("Hint")


class SampledFeeder(ABC, Generic[Hint]):
    """Runs a sample of the batch, then the rest in the order of what the sample showed.

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
        self._hints: dict[RequestId, Hint] = {}
        self._began = False

    @abstractmethod
    def _waiting(self) -> int:
        """Requests of the sample that wait."""

    @abstractmethod
    def _sample_hint(self) -> Hint:
        """What a request of the sample carries."""

    @abstractmethod
    def _begin(self, order: BlendOrder, outputs: NDArray[np.float64]) -> None:
        """The sample ended: the order of the rest, and each request's expected output tokens."""

    @abstractmethod
    def _rest(self) -> list[RequestSpec]:
        """Tops up what waits of the rest."""

    def _hint(self, request: Request) -> Hint:
        return self._hints.pop(request.id)

    def take(self, *, now_s: float, unfinished: int) -> list[RequestSpec]:  # noqa: ARG002
        """Tops up what waits; between sample and rest the engine runs dry."""
        if not self._began:
            given = self._take_sample()
            if given or unfinished:
                return given
            self._began = True
            self._plan()
        return self._rest()

    def online_ended(self, record: RequestRecord) -> None:
        """Makes no difference."""

    def _take_sample(self) -> list[RequestSpec]:
        missing = WINDOW - self._waiting()
        return [
            self._spec(number, self._sample_hint())
            for _, number in zip(range(missing), self._sample, strict=False)
        ]

    def _plan(self) -> None:
        outputs = estimate_outputs(
            self._tree,
            outputs=self._case.workload.output_tokens.astype(np.float64),
            seen=self._seen,
        )
        order = blend(self._tree, self._prompts, outputs=outputs, model=self._case.model)
        rest = ~self._sampled[order.requests]
        left = BlendOrder(
            requests=order.requests[rest],
            density=order.density[rest],
            compute_s=order.compute_s[rest],
            memory_s=order.memory_s[rest],
            family=order.family[rest],
            target_density=order.target_density,
        )
        self._begin(left, outputs)

    def _decode_steps(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Planned steps that each request decodes in; its first token comes with its prompt."""
        return (np.maximum(outputs - 1, 0) / self._case.factor).round()

    def _spec(self, number: int, hint: Hint) -> RequestSpec:
        spec = self._batch.spec(number)
        self._hints[spec.id] = hint
        return spec


class BlendFeeder(SampledFeeder[BlendHint]):
    """From both ends of the density order, for the dual scanner."""

    def __init__(self, case: Case, batch: BatchSet) -> None:
        super().__init__(case, batch)
        self._left = self._right = 0
        self.pool = DualScanOrder(target_density=1.0, hint=self._hint)

    def _waiting(self) -> int:
        return len(self.pool)

    def _sample_hint(self) -> BlendHint:
        return BlendHint(side=Side.LEFT, density=1.0, held_tokens=1.0)

    def _begin(self, order: BlendOrder, outputs: NDArray[np.float64]) -> None:
        self._order = order
        self._right = len(order)
        self._held = self._held_tokens(outputs)
        self.pool.set_target(order.target_density)

    def _rest(self) -> list[RequestSpec]:
        return [*self._take_side(Side.LEFT), *self._take_side(Side.RIGHT)]

    def _held_tokens(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """KV that each request reads in a step on average, over the steps that it is there.

        A planned step stands for many: who needs two of them is simulated as if it stayed for all.
        """
        stays = (self._decode_steps(outputs) + 1) * self._case.factor
        return (self._prompts.tokens + outputs / 2) * outputs / stays

    def _take_side(self, side: Side) -> Iterator[RequestSpec]:
        order = self._order
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


class PacedFeeder(SampledFeeder[BlendWork]):
    """From three places of the density order, for the order that keeps both lanes busy.

    The compute side is what is at least as dense as the whole batch. Lengths are in the units that
    the batch is simulated in; seconds are those of a planned step.
    """

    def __init__(self, case: Case, batch: BatchSet) -> None:
        super().__init__(case, batch)
        factor = case.factor
        lane = MemoryLane.of(case.model)
        self.pool = PacedBlendOrder(
            lane=MemoryLane(weights_s=lane.weights_s * factor, token_s=lane.token_s * factor**2),
            kv_tokens=case.kv_tokens / factor,
            hint=self._hint,
        )

    def _waiting(self) -> int:
        return len(self.pool)

    def _sample_hint(self) -> BlendWork:
        return BlendWork(scan=Scan.COMPUTE, compute_s=0.0, prompt_tokens=1.0, decode_steps=0.0)

    def _begin(self, order: BlendOrder, outputs: NDArray[np.float64]) -> None:
        self._order = order
        self._centre = int(np.count_nonzero(order.density >= order.target_density))
        self._next = {Scan.COMPUTE: 0, Scan.CENTRE: self._centre - 1, Scan.MEMORY: len(order) - 1}
        self._prompt = self._prompts.tokens[order.requests] / self._case.factor
        self._steps = self._decode_steps(outputs)[order.requests]
        reads = context_read_tokens(self._prompt, self._steps)
        self.pool.begin(
            Ahead(
                compute_s=float(order.compute_s.sum()),
                compute_side_tokens=float(reads[: self._centre].sum()),
                memory_side_tokens=float(reads[self._centre :].sum()),
            )
        )

    def _rest(self) -> list[RequestSpec]:
        return [spec for scan in Scan for spec in self._take_scan(scan)]

    def _left(self, scan: Scan) -> int:
        """Requests that can still be taken from there."""
        at = self._next
        if scan is Scan.MEMORY:
            return at[scan] + 1 - self._centre
        return at[Scan.CENTRE] + 1 - at[Scan.COMPUTE]

    def _take_scan(self, scan: Scan) -> Iterator[RequestSpec]:
        for _ in range(min(WINDOW - self.pool.waiting(scan), self._left(scan))):
            place = self._next[scan]
            self._next[scan] += 1 if scan is Scan.COMPUTE else -1
            hint = BlendWork(
                scan=scan,
                compute_s=float(self._order.compute_s[place]),
                prompt_tokens=float(self._prompt[place]),
                decode_steps=float(self._steps[place]),
            )
            yield self._spec(int(self._order.requests[place]), hint)
