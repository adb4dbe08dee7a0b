"""A step while it is being planned: what is in it so far and what is left to give out.

Mutable and private to one ``plan`` call; it changes no request and no block.
"""

from collections.abc import Sequence

from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.view import KvView, PrefixHit
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.request import Request
from weir_engine.sched.plan import Preemption, Work
from weir_engine.sched.preemption import freed_of
from weir_engine.sched.step_kind import StepKind


class StepDraft:
    """Sums of a step under construction.

    ``tokens_left``, ``blocks_left`` and ``seqs_left`` are what the engine still has;
    ``offline_blocks`` is the offline holding as the step would leave it, ``ends_prompt`` says that
    an online request gets its first token from the step, ``prompts_share`` that others may join it
    all the same, ``lacks_room`` that one waits for blocks or a slot. ``online_gave_way`` says that
    an online request is preempted, ``admitted`` how many shares are of requests that did not run
    before; ``asks_nothing`` that offline work gets nothing, whatever the accounts would say.
    Where ``kind`` is ``PREFILL``, ``waiting_decodes`` are the online decodes that it leaves out,
    and ``waiting_s`` what these take in the next step.
    """

    __slots__ = (
        "_adopted_blocks",
        "_adopted_of_online",
        "_adopting",
        "_kv",
        "_shape",
        "admitted",
        "allocated_blocks",
        "asks_nothing",
        "block_size_tokens",
        "blocks_left",
        "computing",
        "decode_context",
        "decode_longest",
        "decode_requests",
        "ends_prompt",
        "kind",
        "lacks_room",
        "offline_blocks",
        "offline_seqs",
        "online_gave_way",
        "preempt",
        "preempted",
        "prefill_history",
        "prefill_requests",
        "prefill_tokens",
        "prompts_share",
        "recall",
        "refused",
        "released",
        "restore",
        "seqs_left",
        "tokens_left",
        "waiting_decodes",
        "waiting_s",
        "work",
    )

    def __init__(
        self, kv: KvView, *, block_size_tokens: int, tokens: int, seqs: int, offline_seqs: int
    ) -> None:
        self._kv = kv
        self.block_size_tokens = block_size_tokens
        self.tokens_left = tokens
        self.seqs_left = seqs
        self.offline_seqs = offline_seqs
        self.blocks_left = kv.free_blocks
        self.offline_blocks = kv.offline_only_blocks
        self.allocated_blocks = 0
        self._adopting: list[tuple[Request, PrefixHit, int]] = []  # hits that are not counted yet
        self._adopted_blocks = 0
        self._adopted_of_online = 0
        self.online_gave_way = False
        self.work: list[Work] = []
        self.preempt: list[Preemption] = []
        self.preempted: set[RequestId] = set()
        self.released: set[BlockHash] = set()
        self.computing: set[BlockHash] = set()
        self.refused: frozenset[RequestId] = frozenset()
        self.recall: list[RequestId] = []
        self.restore: list[RequestId] = []
        self.prefill_tokens = 0
        self.prefill_history = 0.0
        self.prefill_requests = 0
        self.decode_requests = 0
        self.decode_context = 0
        self.decode_longest = 0
        self.kind = StepKind.HYBRID
        self.waiting_decodes = EMPTY_SHAPE
        self.waiting_s = 0.0
        self.ends_prompt = False
        self.prompts_share = False
        self.lacks_room = False
        self.asks_nothing = False
        self.admitted = 0
        self._shape: StepShape | None = None

    @property
    def shape(self) -> StepShape:
        """What the step computes so far."""
        if self._shape is None:
            self._shape = StepShape(
                self.prefill_tokens,
                self.prefill_history,
                self.prefill_requests,
                self.decode_requests,
                self.decode_context,
                self.decode_longest,
            )
        return self._shape

    @property
    def decode_shape(self) -> StepShape:
        """Its decodes alone."""
        return StepShape(
            decode_requests=self.decode_requests,
            decode_context=self.decode_context,
            decode_longest=self.decode_longest,
        )

    def blocks_for(self, computed_tokens: int, new_tokens: int) -> int:
        """Blocks to allocate so that ``new_tokens`` more fit behind ``computed_tokens``."""
        size = self.block_size_tokens
        return -(-(computed_tokens + new_tokens) // size) - -(-computed_tokens // size)

    def blocks_behind(self, hit_tokens: int, new_tokens: int) -> int:
        """Blocks to allocate so that ``new_tokens`` fit behind a prefix hit.

        A block in which the hit ends is others' too: it is copied into one of its own.
        """
        size = self.block_size_tokens
        return -(-(hit_tokens + new_tokens) // size) - hit_tokens // size

    def sure_hit(self, kv: KvView, request: Request, hit: PrefixHit) -> PrefixHit:
        """The part of a hit that this step's own allocations cannot evict before it is adopted."""
        if self.allocated_blocks == 0 or hit.tokens == 0:
            return hit
        if not (hit.free_blocks or self.released):  # blocks in use are not evicted
            return hit
        evicted = kv.next_evicted(self.allocated_blocks)
        found = request.block_hashes[: hit.tokens // self.block_size_tokens]
        if evicted.isdisjoint(found) and self.released.isdisjoint(found):
            return hit
        for index in range(self._kept_by_online(request, hit), len(found)):
            if found[index] in evicted or found[index] in self.released:
                blocks = min(index, hit.free_blocks)
                return PrefixHit(tokens=index * self.block_size_tokens, free_blocks=blocks)
        return hit

    def hit_blocks(self, request: Request, hit: PrefixHit) -> int:
        """Blocks that adopting a hit takes from the free ones, at most.

        Requests preempted in this step may have been the only holders of the others.
        """
        return self.blocks_to_adopt(request, hit) if self.preempted else hit.free_blocks

    def blocks_to_adopt(self, request: Request, hit: PrefixHit) -> int:
        """The same if all of offline gave way."""
        return -(-hit.tokens // self.block_size_tokens) - self._kept_by_online(request, hit)

    def _kept_by_online(self, request: Request, hit: PrefixHit) -> int:
        """Blocks of a hit, the first ones, that are held whoever of offline gives way."""
        if hit.tokens == 0 or self.online_gave_way:
            return 0
        return self._kv.held_by_online(request, hit.tokens)

    def admit(self, request: Request, hit: PrefixHit, tokens: int, *, reason: str) -> None:
        """A request joins with this hit and so many tokens behind it."""
        offline = not request.is_online
        blocks = self.blocks_behind(hit.tokens, tokens) + self.hit_blocks(request, hit)
        self.adopts(request, hit)
        self.take_blocks(blocks, offline=offline)
        self.seqs_left -= 1
        self.offline_seqs += offline
        self.computing.update(request.block_hashes[hit.tokens // self.block_size_tokens :])
        work = Work(
            request_id=request.id,
            tokens=tokens,
            admitted=True,
            hit_tokens=hit.tokens,
            reason=reason,
        )
        self.add_prefill(work, hit.tokens)

    def adopts(self, request: Request, hit: PrefixHit, sign: int = 1) -> None:
        """A request joins with the blocks of this hit, or (-1) does not after all."""
        self._adopting.append((request, hit, sign))  # counted when asked for: in few steps

    @property
    def adopted_blocks(self) -> int:
        """Found by admissions and not yet missed by a preemption, but for what online holds."""
        for request, hit, sign in self._adopting:
            kept = self._kept_by_online(request, hit)
            self._adopted_of_online += sign * kept
            self._adopted_blocks += sign * (-(-hit.tokens // self.block_size_tokens) - kept)
        self._adopting.clear()
        return self._adopted_blocks

    def take_blocks(self, blocks: int, *, offline: bool) -> None:
        """Allocate from what is left."""
        self.blocks_left -= blocks
        self.allocated_blocks += blocks
        if offline:
            self.offline_blocks += blocks

    def add_decodes(self, works: Sequence[Work], decodes: StepShape) -> None:
        """One token each of requests that decode; ``decodes`` is what these compute."""
        if not works:
            return
        self._shape = None
        self.decode_requests += decodes.decode_requests
        self.decode_context += decodes.decode_context
        self.decode_longest = max(self.decode_longest, decodes.decode_longest)
        self.tokens_left -= len(works)
        self.work += works

    def decode_blocks(self, computed_tokens: Sequence[int]) -> int:
        """Blocks that one more token on top of each of these takes."""
        size = self.block_size_tokens
        return [computed % size for computed in computed_tokens].count(0)

    def add_prefill(self, work: Work, computed_tokens: int) -> None:
        """Some tokens of a request that prefills, on top of those computed."""
        tokens = work.tokens
        self._shape = None
        self.admitted += work.admitted
        self.prefill_tokens += tokens
        self.prefill_history += tokens * (computed_tokens + tokens / 2)
        self.prefill_requests += 1
        self.tokens_left -= tokens
        self.work.append(work)

    def drop(
        self, request: Request, releasable_blocks: int, *, reason: str, to_cpu: bool = False
    ) -> None:
        """Preempt a running request before the step."""
        # At least: some may have been adopted in this step.
        freed_blocks, self._adopted_blocks = freed_of(releasable_blocks, self.adopted_blocks)
        if request.is_online:
            self.online_gave_way = True
            freed_blocks, self._adopted_of_online = freed_of(freed_blocks, self._adopted_of_online)
        self.preempt.append(Preemption(request_id=request.id, reason=reason, to_cpu=to_cpu))
        self.preempted.add(request.id)
        self.released.update(request.block_hashes)
        self.blocks_left += freed_blocks
        self.seqs_left += 1
        if not request.is_online:
            self.offline_seqs -= 1
            self.offline_blocks -= freed_blocks
