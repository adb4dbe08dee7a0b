"""A step under packing: shares of both classes that may be taken back in reverse order.

Sums only; which request gets a share is the packing's decision.
"""

from math import inf
from typing import NamedTuple

from weir_engine.kv.view import PrefixHit
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.request import Request
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.plan import Work


class Share(NamedTuple):
    """One request's place in a step.

    ``tokens`` on top of ``computed_tokens``; ``blocks`` lower the free count; ``left_s`` is the
    time to an online request's deadline. ``hit``: it is admitted with this one. ``slots`` are
    copied back from the host first; ``restores``: something has to be put right for that.
    """

    request: Request
    tokens: int
    computed_tokens: int
    blocks: int
    left_s: float = inf
    hit: PrefixHit | None = None
    slots: int = 0
    restores: bool = False

    @property
    def decodes(self) -> bool:
        """True for one token of a running request that has all before it."""
        return self.hit is None and self.request.is_decoding

    def on(self, shape: StepShape) -> StepShape:
        """The shape of a step with this share in it too."""
        if self.decodes:
            return shape.with_decode(self.computed_tokens + 1)
        return shape.with_prefill(self.tokens, self.computed_tokens)

    @property
    def work(self) -> Work:
        """What the engine is told."""
        kind = "online" if self.request.is_online else "offline"
        what = "decode" if self.decodes else "prefill" if self.hit is None else "admit"
        return Work(
            request_id=self.request.id,
            tokens=self.tokens,
            admitted=self.hit is not None,
            hit_tokens=0 if self.hit is None else self.hit.tokens,
            reason=f"{kind}-{what}",
        )


class PackedStep:
    """Shares in the order taken, over a draft whose blocks and slots they use."""

    def __init__(self, draft: StepDraft) -> None:
        self._draft = draft
        self.online: list[Share] = []
        self.offline: list[Share] = []
        self._online_shapes = [EMPTY_SHAPE]
        self._offline_shape = EMPTY_SHAPE
        self.slots = 0
        self._tokens = 0

    def __len__(self) -> int:
        return len(self.online) + len(self.offline)

    @property
    def online_shape(self) -> StepShape:
        """What online computes."""
        return self._online_shapes[-1]

    @property
    def shape(self) -> StepShape:
        """What the step computes so far."""
        return self.online_shape.plus(self._offline_shape)

    @property
    def tokens_left(self) -> int:
        """Tokens that the engine's step still takes."""
        return self._draft.tokens_left - self._tokens

    def shape_with(self, share: Share, *, without_last_online: bool = False) -> StepShape:
        """The shape with one more share, and perhaps without the online share taken last."""
        online = self._online_shapes[-2 if without_last_online else -1]
        if not self.offline:
            return share.on(online)
        return share.on(online.plus(self._offline_shape))

    def take(self, share: Share) -> None:
        """Give a request its place."""
        self._count(share, 1)
        self._leads(share)
        self.slots += share.slots
        if share.request.is_online:
            self.online.append(share)
            self._online_shapes.append(share.on(self.online_shape))
        else:
            self.offline.append(share)
            self._offline_shape = share.on(self._offline_shape)

    def take_back_online(self) -> Share:
        """The online share taken last loses its place."""
        share = self.online.pop()
        self._online_shapes.pop()
        self._count(share, -1)
        if share.hit is not None:  # others may lead to the same blocks
            self._draft.computing.clear()
            for other in (*self.online, *self.offline):
                self._leads(other)
        return share

    def write(self) -> None:
        """Put the shares into the draft, in the order taken: the engine takes blocks in it."""
        draft = self._draft
        for share in (*self.online, *self.offline):
            if share.restores:
                draft.restore.append(share.request.id)
            if share.decodes:
                draft.add_decodes([share.work], StepShape.of_decodes([share.computed_tokens]))
            else:
                draft.add_prefill(share.work, share.computed_tokens)

    def _leads(self, share: Share) -> None:
        """An admission computes what its hit lacks: others wait for that (design §3, rule 6)."""
        if share.hit is not None:
            first = share.hit.tokens // self._draft.block_size_tokens
            self._draft.computing.update(share.request.block_hashes[first:])

    def _count(self, share: Share, sign: int) -> None:
        draft, offline = self._draft, not share.request.is_online
        self._tokens += sign * share.tokens
        draft.take_blocks(sign * share.blocks, offline=offline)
        if share.hit is not None:
            draft.seqs_left -= sign
            draft.adopts(share.request, share.hit, sign)
            draft.offline_seqs += sign if offline else 0
