"""A whole batch in virtual time: hundreds of thousands of requests without online traffic.

One planned step stands for several equal steps of the engine, in units of as many tokens; the
scheduler and the KV manager are the production ones and know nothing of it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from weir_engine.ids import BlockHash, RequestClass, RequestId
from weir_engine.kv.block_cache import BlockCache
from weir_engine.kv.manager import KvManager
from weir_engine.request import Request
from weir_engine.sched.selection import OfflineOrder
from weir_engine.sim.cost import Parts
from weir_engine.sim.engine import Running, SimEngine
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import StepBatch
from weir_engine.sim.records import RequestRecord
from weir_engine.sim.workload import RequestSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSet:
    """Offline requests as arrays ``(n,)``; a request's id is its number.

    ``hashes`` and ``offsets``: the block hashes that others may share, request after request.
    ``expected_tokens``: the output that KV memory is kept for when a request is admitted.
    """

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    expected_tokens: NDArray[np.int64]
    hashes: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def spec(self, number: int) -> RequestSpec:
        """The request as a feeder hands it out: a number, and no text."""
        return RequestSpec(
            id=RequestId(str(number)),
            klass=RequestClass.OFFLINE,
            arrival_s=0.0,
            segments=(),
            output_tokens=int(self.output_tokens[number]),
        )


class _WalkedCache(BlockCache):
    """Blocks whose free list is walked once a plan, not once for each admission of it."""

    _walk: Iterator[int]
    _listed: list[BlockHash]
    _walked: int = 0  # blocks of the walk; 0: it begins anew

    @override
    def next_evicted(self, blocks: int) -> frozenset[BlockHash]:
        """As in ``BlockCache``; larger numbers go on where the last one ended."""
        if not self._walked or blocks < self._walked:
            self._walk, self._walked, self._listed = iter(self._free), 0, []
        hashes = self._table.hashes
        for block in islice(self._walk, blocks - self._walked):
            block_hash = hashes[block]
            if block_hash is not None:
                self._listed.append(block_hash)
        self._walked = blocks
        return frozenset(self._listed)

    @override
    def _changed(self) -> None:
        super()._changed()
        self._walked = 0

    @override
    def _on_references(self, hashes: Sequence[BlockHash]) -> None:
        super()._on_references(hashes)
        self._walked = 0


class BatchKv(KvManager):
    """A KV manager for plans of very many admissions."""

    cache_type = _WalkedCache


class BatchEngine(SimEngine):
    """An engine whose requests come from a ``BatchSet``: their hashes are not made from text.

    ``counted``: tell the KV manager which prefixes waiting requests want; LRU does not ask.
    """

    def __init__(
        self,
        *,
        kv: KvManager,
        cost: "CoarseCost",
        rng: np.random.Generator,
        batch: BatchSet,
        counted: bool = True,
    ) -> None:
        super().__init__(kv=kv, cost=cost, rng=rng)
        self._batch_set = batch
        self._counted = counted

    def accept(self, spec: RequestSpec, arrival_s: float) -> Request:
        """Take a request in by its number."""
        number, batch = int(spec.id), self._batch_set
        hashes = batch.hashes[batch.offsets[number] : batch.offsets[number + 1]].tolist()
        request = Request(
            id=spec.id,
            klass=spec.klass,
            arrival_s=arrival_s,
            prompt_tokens=int(batch.prompt_tokens[number]),
            max_output_tokens=spec.output_tokens,
            expected_output_tokens=int(batch.expected_tokens[number]),
            block_hashes=hashes,
        )
        self._known[spec.id] = Running(
            request=request, output_tokens=spec.output_tokens, hashes=hashes
        )
        if self._counted:
            self.kv.expect(request)
        return request


class CoarseCost:
    """The cost of ``factor`` equal steps that are planned as one.

    Lengths are in units of ``factor`` tokens. A decode of one unit is one token in each of the
    steps; prompts are computed one after the other over the steps, each with its share of tokens.
    ``compute_s`` and ``memory_s`` sum up dense layers with prefills (``prefill_s`` of it attention)
    and attention of the decodes.
    ``timed`` bounds how many of the steps are timed; they stand for the others. ``multiple``: the
    tokens of the steps are rounded up and down to multiples of it, so that their sum stays.

    Source of ``multiple``: BlendServe §4 and §5.3, "alternately round up/down ... by amortization".
    """

    def __init__(
        self, cost: ProfileCost, *, factor: int = 1, timed: int = 4, multiple: int = 1
    ) -> None:
        self._cost = cost
        self._factor = factor
        self._multiple = multiple
        self._stride = max(1, factor // timed)
        self.compute_s = 0.0
        self.prefill_s = 0.0
        self.memory_s = 0.0

    @property
    def empty_step_s(self) -> float:
        """What an empty step costs; see ``StepCost``."""
        return self._cost.empty_step_s

    def work_s(self, parts: Parts) -> float:
        """Nothing: it is asked for online parts only, and there are none."""
        return 0.0 * len(parts)

    def seconds(self, parts: Parts, rng: np.random.Generator) -> float:
        """Noiseless seconds of the steps; counts what their lanes took."""
        return self.timed(parts, rng)[0]

    def timed(
        self,
        parts: Parts,
        rng: np.random.Generator,  # noqa: ARG002 - no noise
    ) -> tuple[float, float]:
        """Noiseless seconds of the steps, and ``work_s``; counts what their lanes took."""
        factor = self._factor
        decodes = [computed + 1 for tokens, computed, _ in parts if tokens == 1]
        prompts = [part for part in parts if part[0] > 1]
        share = sum(tokens for tokens, _, _ in prompts)  # a step's, of factor times as many tokens
        context = factor * sum(decodes)
        shortest = factor * min(decodes, default=0)
        longest = factor * max(decodes, default=0)
        total_s = 0.0
        weight = factor / len(range(0, factor, self._stride))
        sizes = self._sizes(share, len(decodes)) if factor > 1 else [(share + len(decodes), 1.0)]
        for prefills in islice(_spread(prompts, share, factor), 0, None, self._stride):
            for tokens, part in sizes:
                batch = StepBatch(tokens, prefills, len(decodes), context, shortest, longest)
                time = self._cost.profile.timing.step(batch)
                steps = weight * part
                total_s += steps * self._cost.total_s(time)
                self.prefill_s += steps * time.prefill_s
                self.compute_s += steps * (time.dense_s + time.prefill_s)
                self.memory_s += steps * time.decode_s
        return total_s, self.work_s(parts)

    def _sizes(self, prefill_tokens: int, decodes: int) -> list[tuple[int, float]]:
        """Tokens of the steps and how large a part of them has so many; all have the decodes."""
        tokens, multiple = prefill_tokens + decodes, self._multiple
        if not prefill_tokens or not tokens % multiple:
            return [(tokens, 1.0)]
        above = tokens + multiple - tokens % multiple
        below = max(tokens - tokens % multiple, decodes)
        part = (tokens - below) / (above - below)
        return [(below, 1.0 - part), (above, part)]


def _spread(prompts: Parts, share: int, factor: int) -> Iterator[list[tuple[int, int]]]:
    """The prompts of each step, ``share`` tokens in each: (new, computed) tokens."""
    rest = iter(prompts)
    left = done = 0
    for _ in range(factor):
        room, step = share, []
        while room:
            if not left:
                tokens, computed, _ = next(rest)
                left, done = tokens * factor, computed * factor
            tokens = min(left, room)
            step.append((tokens, done))
            left, done, room = left - tokens, done + tokens, room - tokens
        yield step


class CoarsePool:
    """A pool whose planned steps stand for several: so many times the candidates are shown."""

    def __init__(self, pool: OfflineOrder, *, factor: int) -> None:
        self._pool = pool
        self._factor = factor
        self.add = pool.add
        self.remove = pool.remove
        self.taken = pool.taken

    def __len__(self) -> int:
        return len(self._pool)

    def candidates(self, limit: int, now_s: float) -> Sequence[Request]:
        """The first ``factor`` times ``limit`` in order."""
        return self._pool.candidates(limit * self._factor, now_s)


class OrderFeeder:
    """Hands out requests in an order: at most ``window`` of them wait in the engine.

    ``waiting`` says how many wait now.
    """

    def __init__(
        self,
        batch: BatchSet,
        order: Sequence[int],
        *,
        waiting: Callable[[int], int],
        window: int = 128,
    ) -> None:
        self._batch = batch
        self._rest = iter(order)
        self._waiting = waiting
        self._window = window

    def take(self, *, now_s: float, unfinished: int) -> list[RequestSpec]:  # noqa: ARG002
        """Fills the window up when half of it is gone."""
        missing = self._window - self._waiting(unfinished)
        if 2 * missing < self._window:
            return []
        return [
            self._batch.spec(number) for _, number in zip(range(missing), self._rest, strict=False)
        ]

    def online_ended(self, record: RequestRecord) -> None:
        """Makes no difference."""
