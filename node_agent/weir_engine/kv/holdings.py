"""Which blocks each running request holds, and how many of them were offered to the prefix index.

Which block a request gets, and whether it may have one, is the manager's business.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from weir_engine.errors import InvariantError, UnknownRequestError
from weir_engine.ids import BlockHash, RequestId
from weir_engine.request import Request


@dataclass(kw_only=True, slots=True)
class Holding:
    """The blocks of one running request, in the order of its tokens.

    ``hashed`` of them, from the start, were offered to the prefix index.
    """

    online: bool
    blocks: list[int]
    hashed: int


class Holdings:
    """Holdings by request."""

    __slots__ = ("_block_size_tokens", "_by_id")

    def __init__(self, *, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._by_id: dict[RequestId, Holding] = {}

    def find(self, request_id: RequestId) -> Holding | None:
        """What the request holds, None if it does not run."""
        return self._by_id.get(request_id)

    def of(self, request_id: RequestId) -> Holding:
        """What a running request holds.

        Raises:
            UnknownRequestError: it holds no blocks.
        """
        holding = self._by_id.get(request_id)
        if holding is None:
            raise UnknownRequestError(f"request {request_id} holds no KV blocks; allocate first")
        return holding

    def add(self, request_id: RequestId, holding: Holding) -> None:
        """A request runs from now on."""
        self._by_id[request_id] = holding

    def pop(self, request_id: RequestId) -> Holding | None:
        """It runs no more; what it held, None if it did not run."""
        return self._by_id.pop(request_id, None)

    def by_class(self) -> dict[RequestId, tuple[list[int], bool]]:
        """The blocks of each request, and whether it is online."""
        return {name: (holding.blocks, holding.online) for name, holding in self._by_id.items()}

    def full(self, requests: Iterable[Request]) -> list[tuple[Request, Holding]]:
        """Those requests, in order, whose computed tokens fill their blocks.

        Raises:
            UnknownRequestError: one holds no blocks.
        """
        size = self._block_size_tokens
        held = [(request, self.of(request.id)) for request in requests]
        return [each for each in held if each[0].computed_tokens >= len(each[1].blocks) * size]

    def newly_full(
        self, requests: Iterable[Request]
    ) -> Iterator[tuple[bool, list[int], list[BlockHash]]]:
        """Blocks that are computed by now and have hashes, each once; in order, by runs of a class.

        A run is whether its requests are online, blocks, and as many hashes. Read all runs.

        Raises:
            UnknownRequestError: one holds no blocks.
            InvariantError: one computed more tokens than its blocks hold.
        """
        size = self._block_size_tokens
        new: list[tuple[Holding, int, list[BlockHash]]] = []
        for request in requests:
            holding = self.of(request.id)
            computed, hashes = request.computed_tokens, request.block_hashes
            if computed > len(holding.blocks) * size:
                raise InvariantError(
                    f"request {request.id} computed {computed} tokens in "
                    f"{len(holding.blocks)} blocks of {size}"
                )
            upto = min(computed // size, len(hashes))
            if upto > holding.hashed:
                new.append((holding, upto, hashes))
        for online, run in groupby(new, key=lambda each: each[0].online):
            blocks: list[int] = []
            block_hashes: list[BlockHash] = []
            for holding, upto, hashes in run:
                blocks += holding.blocks[holding.hashed : upto]
                block_hashes += hashes[holding.hashed : upto]
                holding.hashed = upto
            yield online, blocks, block_hashes
