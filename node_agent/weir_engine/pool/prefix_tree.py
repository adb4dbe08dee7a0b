"""Waiting requests in a compressed prefix tree over block hashes, walked depth first.

Order only; which tree is asked, and whether a request fits, is decided elsewhere.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from weir_engine.errors import DuplicateRequestError, UnknownRequestError
from weir_engine.ids import BlockHash, RequestId
from weir_engine.request import Request


class _Node:
    """A run of hashes below ``parent``: ``source[start:end]``. A leaf carries one request.

    ``source`` is the hash list of some request below, now or once: it holds the whole path, so
    runs are never copied. Children are linked in order; ``by_hash`` finds those with a run. The
    started ones stand first, up to ``last_started``. The root is its own parent.
    """

    __slots__ = (
        "by_hash",
        "end",
        "first",
        "last",
        "last_started",
        "next",
        "parent",
        "prev",
        "request",
        "source",
        "start",
        "started",
    )

    def __init__(
        self, source: Sequence[BlockHash], start: int, end: int, request: Request | None
    ) -> None:
        self.source = source
        self.start = start
        self.end = end
        self.request = request
        self.parent: _Node = self
        self.prev: _Node | None = None
        self.next: _Node | None = None
        self.first: _Node | None = None
        self.last: _Node | None = None
        self.last_started: _Node | None = None
        self.by_hash: dict[BlockHash, _Node] = {}
        self.started = False

    def append(self, child: "_Node") -> None:
        """Link a child as the last."""
        child.parent = self
        child.prev = self.last
        child.next = None
        if self.last is None:
            self.first = child
        else:
            self.last.next = child
        self.last = child
        self._index(child)

    def replace(self, old: "_Node", new: "_Node") -> None:
        """Put ``new`` in the place of ``old``, with its standing; both start with one hash."""
        new.parent = self
        new.started = old.started
        new.prev, new.next = old.prev, old.next
        if old.prev is None:
            self.first = new
        else:
            old.prev.next = new
        if old.next is None:
            self.last = new
        else:
            old.next.prev = new
        if self.last_started is old:
            self.last_started = new
        self._index(new)

    def unlink(self, child: "_Node") -> None:
        """Take a child out."""
        if self.last_started is child:
            self.last_started = child.prev
        self._detach(child)
        if child.end > child.start:
            del self.by_hash[child.source[child.start]]

    def mark_started(self, child: "_Node") -> None:
        """Move a child behind those that were started before it."""
        child.started = True
        after = self.last_started
        before = self.first if after is None else after.next
        if before is not None and before is not child:
            self._detach(child)
            child.prev, child.next = after, before
            before.prev = child
            if after is None:
                self.first = child
            else:
                after.next = child
        self.last_started = child

    def _detach(self, child: "_Node") -> None:
        if child.prev is None:
            self.first = child.next
        else:
            child.prev.next = child.next
        if child.next is None:
            self.last = child.prev
        else:
            child.next.prev = child.prev

    def _index(self, child: "_Node") -> None:
        if child.end > child.start:
            self.by_hash[child.source[child.start]] = child


class PrefixTree:
    """Requests in depth-first order of the prefixes they share.

    Children stand in order of arrival, but those with a request taken already come first, the
    first started first: a prefix that was computed is used up before the next one is begun, also
    when its followers had to wait for a leader. Hashes are chained, so two runs that agree at a
    place agree before it: the branching point is found by bisection. The hash lists of waiting
    requests must not change below the length they had when added.

    Source: HyGen §4.3 and Algorithm 3 (T_p). Started first is ours: HyGen's walk has no leaders.
    """

    __slots__ = ("_leaves", "_root")

    def __init__(self) -> None:
        self._root = _Node((), 0, 0, None)
        self._leaves: dict[RequestId, _Node] = {}

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._leaves

    def __iter__(self) -> Iterator[Request]:
        """All requests in order; the tree must not change meanwhile."""
        return _walk(self._root)

    def families(self) -> Iterator[Iterator[Request]]:
        """The requests of each prefix family, those that share a first block, in order.

        The tree must not change meanwhile.
        """
        child = self._root.first
        while child is not None:
            yield _walk(child)
            child = child.next

    def head(self, limit: int) -> list[Request]:
        """The first ``limit`` requests in order."""
        return list(islice(self, limit))

    def add(self, request: Request) -> None:
        """Insert a request behind those it shares most with.

        Raises:
            DuplicateRequestError: its id is in the tree.
        """
        if request.id in self._leaves:
            raise DuplicateRequestError(f"request {request.id} is in the prefix tree already")
        hashes = request.block_hashes
        length = len(hashes)
        node = self._root
        depth = 0
        while depth < length:
            child = node.by_hash.get(hashes[depth])
            if child is None:
                break
            depth = _branch(child, hashes, length)
            if depth < child.end or child.request is not None:
                node = self._split(node, child, depth)
                break
            node = child
        leaf = _Node(hashes, depth, length, request)
        node.append(leaf)
        self._leaves[request.id] = leaf

    def remove(self, request_id: RequestId) -> None:
        """Take a request out that will not run; its prefix is not started by this.

        Raises:
            UnknownRequestError: it is not in the tree.
        """
        leaf = self._leaf(request_id)
        del self._leaves[request_id]
        leaf.parent.unlink(leaf)
        self._prune(leaf.parent)

    def take(self, request_id: RequestId) -> None:
        """Take a request out that runs now: what shares its prefix comes next.

        Raises:
            UnknownRequestError: it is not in the tree.
        """
        node = self._leaf(request_id).parent
        while node is not self._root:
            if not node.started:
                node.parent.mark_started(node)
            node = node.parent
        self.remove(request_id)

    def nodes(self) -> int:
        """Nodes of the tree, the root not counted: at most two a request."""
        count = 0
        stack = [self._root]
        while stack:
            child = stack.pop().first
            while child is not None:
                count += 1
                stack.append(child)
                child = child.next
        return count

    def _leaf(self, request_id: RequestId) -> _Node:
        leaf = self._leaves.get(request_id)
        if leaf is None:
            raise UnknownRequestError(f"request {request_id} is not in the prefix tree")
        return leaf

    def _split(self, above: _Node, child: _Node, depth: int) -> _Node:
        """Put a node over the part of the child's run before ``depth``, and return it."""
        middle = _Node(child.source, child.start, depth, None)
        above.replace(child, middle)
        started, child.started = child.started, False
        child.start = depth
        middle.append(child)
        if started:
            middle.mark_started(child)
        return middle

    def _prune(self, node: _Node) -> None:
        """Restore compression after a child of ``node`` left: no inner node has one child."""
        only = node.first
        if node is self._root or only is None or only is not node.last:
            return
        only.start = node.start
        node.parent.replace(node, only)


def _walk(top: _Node) -> Iterator[Request]:
    """The requests at and below a node, depth first."""
    node: _Node | None = top
    while node is not None:
        request = node.request
        if request is None:
            node = node.first
            continue
        yield request
        while node is not top and node.next is None:
            node = node.parent
        node = None if node is top else node.next


def _branch(child: _Node, hashes: Sequence[BlockHash], length: int) -> int:
    """The depth at which ``hashes`` leaves the child's run; its first hash agrees."""
    source = child.source
    low, high = child.start + 1, min(child.end, length)
    if source[high - 1] == hashes[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if source[middle] == hashes[middle]:
            low = middle + 1
        else:
            high = middle
    return low
