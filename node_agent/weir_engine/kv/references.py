"""How many offline requests that have not started yet want each block hash (Echo's RC).

Which blocks hold a hash is the listener's business.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import ne

from weir_engine.errors import DuplicateRequestError
from weir_engine.ids import BlockHash, RequestId

ReferenceListener = Callable[[Sequence[BlockHash]], None]
"""Told the hashes of the request that came or went: their counts have changed."""


class _Run:
    """Hashes that follow each other in prompts, wanted by the same ``count`` requests.

    ``parent`` is the run before it in all these prompts, None at their start.
    """

    __slots__ = ("count", "hashes", "parent")

    def __init__(
        self, hashes: tuple[BlockHash, ...], parent: "_Run | None", count: int = 1
    ) -> None:
        self.hashes = hashes
        self.parent = parent
        self.count = count

    def shared(self, hashes: tuple[BlockHash, ...]) -> int:
        """How many of its hashes some others begin with."""
        if hashes[: len(self.hashes)] == self.hashes:
            return len(self.hashes)
        different = list(map(ne, self.hashes, hashes))
        return different.index(True) if True in different else len(different)


class ReferenceCounter:
    """Counts of waiting or windowed offline requests, by block hash of their prompts.

    A request is added when it becomes known and removed when it starts, ends or is handed back.
    The listener gets hashes from the end of the prompt to its start, so that of equally ranked
    blocks the start of a prefix is re-ranked last and evicted last.

    Hashes are chained, so prompts that share one share all before it: counts are kept by run of
    hashes, and a request changes as many as its prompt has borders with others, not as it has
    blocks.

    Source: Echo §4.2, reference counts. Echo also counts running requests; their blocks are held,
    not free, so here they need no count.
    """

    __slots__ = ("_last_runs", "_listener", "_runs")

    def __init__(self, listener: ReferenceListener | None = None) -> None:
        self._runs: dict[BlockHash | None, _Run] = {}
        self._last_runs: dict[RequestId, _Run | None] = {}  # None: a prompt without a full block
        self._listener = listener

    def __len__(self) -> int:
        """Requests counted."""
        return len(self._last_runs)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._last_runs

    def count(self, block_hash: BlockHash) -> int:
        """Requests whose prompt holds that hash."""
        run = self._runs.get(block_hash)
        return 0 if run is None else run.count

    def counts(self, block_hashes: Iterable[BlockHash | None]) -> list[int]:
        """``count`` of each; 0 for a block without a hash."""
        return [0 if run is None else run.count for run in map(self._runs.get, block_hashes)]

    def among(self, block_hashes: Iterable[BlockHash]) -> int:
        """How many of these hashes some request's prompt holds."""
        return sum(map(self._runs.__contains__, block_hashes))

    def add(self, request_id: RequestId, block_hashes: Sequence[BlockHash]) -> None:
        """Count a request's prompt hashes.

        Raises:
            DuplicateRequestError: it is counted already.
        """
        if request_id in self._last_runs:
            raise DuplicateRequestError(f"request {request_id} is already counted; remove it first")
        rest = tuple(block_hashes)
        last: _Run | None = None
        while rest:
            run = self._runs.get(rest[0])
            if run is None:
                run = _Run(rest, last)
                self._runs.update(dict.fromkeys(rest, run))
            elif run.parent is last and run.hashes[0] == rest[0]:
                run = self._split(run, run.shared(rest))
                run.count += 1
            else:  # two different prefixes with one hash, by chance: the rest is not counted
                break
            last, rest = run, rest[len(run.hashes) :]
        self._last_runs[request_id] = last
        if self._listener is not None:
            self._listener(block_hashes[::-1])

    def remove(self, request_id: RequestId, *, held: int = 0) -> bool:
        """Count a request no longer; False if it was not counted, which is no error.

        ``held``: so many of its first hashes are of blocks that it holds now; the listener, who
        asks for counts again when these are freed, is not told of them.
        """
        if request_id not in self._last_runs:
            return False
        run = self._last_runs.pop(request_id)
        hashes: list[BlockHash] = []
        while run is not None:
            run.count -= 1
            if not run.count:
                for block_hash in run.hashes:
                    self._runs.pop(block_hash, None)
            hashes += run.hashes[::-1]
            run = run.parent
        if self._listener is not None:
            self._listener(hashes[: max(len(hashes) - held, 0)])
        return True

    def _split(self, run: _Run, at: int) -> _Run:
        """The first ``at`` hashes of a run, as a run of their own if there are more."""
        if at == len(run.hashes):
            return run
        first = _Run(run.hashes[:at], run.parent, run.count)
        run.hashes, run.parent = run.hashes[at:], first
        self._runs.update(dict.fromkeys(first.hashes, first))
        return first
