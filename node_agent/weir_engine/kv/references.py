"""How many offline requests that have not started yet want each block hash (Echo's RC).

Which blocks hold a hash is the listener's business.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from weir_engine.errors import DuplicateRequestError
from weir_engine.ids import BlockHash, RequestId

ReferenceListener = Callable[[Sequence[BlockHash], Mapping[BlockHash, int]], None]
"""Told the hashes of the request that came or went, and the counts of all (absent: none)."""


class ReferenceCounter:
    """Counts of waiting or windowed offline requests, by block hash of their prompts.

    A request is added when it becomes known and removed when it starts, ends or is handed back.
    The listener gets hashes from the end of the prompt to its start, so that of equally ranked
    blocks the start of a prefix is re-ranked last and evicted last.

    Source: Echo §4.2, reference counts. Echo also counts running requests; their blocks are held,
    not free, so here they need no count.
    """

    __slots__ = ("_counts", "_hashes", "_listener")

    def __init__(self, listener: ReferenceListener | None = None) -> None:
        self._counts: Counter[BlockHash] = Counter()
        self._hashes: dict[RequestId, tuple[BlockHash, ...]] = {}
        self._listener = listener

    def __len__(self) -> int:
        """Requests counted."""
        return len(self._hashes)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._hashes

    def count(self, block_hash: BlockHash) -> int:
        """Requests whose prompt holds that hash."""
        return self._counts.get(block_hash, 0)

    def counts(self, block_hashes: Iterable[BlockHash | None]) -> list[int]:
        """``count`` of each; 0 for a block without a hash."""
        get = self._counts.get
        return [0 if block_hash is None else get(block_hash, 0) for block_hash in block_hashes]

    def among(self, block_hashes: Iterable[BlockHash]) -> int:
        """How many of these hashes some request's prompt holds."""
        return sum(map(self._counts.__contains__, block_hashes))

    def add(self, request_id: RequestId, block_hashes: Sequence[BlockHash]) -> None:
        """Count a request's prompt hashes.

        Raises:
            DuplicateRequestError: it is counted already.
        """
        if request_id in self._hashes:
            raise DuplicateRequestError(f"request {request_id} is already counted; remove it first")
        # A hash may stand once in a prompt: it is chained over everything before it.
        hashes = tuple(dict.fromkeys(block_hashes))
        self._hashes[request_id] = hashes
        self._counts.update(hashes)
        if self._listener is not None:
            self._listener(hashes[::-1], self._counts)

    def remove(self, request_id: RequestId) -> bool:
        """Count a request no longer; False if it was not counted, which is no error."""
        hashes = self._hashes.pop(request_id, None)
        if hashes is None:
            return False
        counts = self._counts
        for block_hash in hashes:
            left = counts[block_hash] - 1
            if left:
                counts[block_hash] = left
            else:
                del counts[block_hash]
        if self._listener is not None:
            self._listener(hashes[::-1], counts)
        return True
