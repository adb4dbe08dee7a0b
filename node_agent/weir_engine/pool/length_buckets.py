"""Waiting requests by length, each bucket a prefix tree: few candidates stand for all.

Order within a bucket only; what a candidate is worth is decided elsewhere.
"""

from collections.abc import Iterator
from itertools import islice

from weir_engine.errors import DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.prefix_tree import PrefixTree
from weir_engine.request import Request


class LengthBuckets:
    """Prefix trees by prompt length, a bucket for each doubling of tokens.

    Source: Echo §6, "Online queue and offline pool".
    """

    __slots__ = ("_bucket_of", "_trees")

    def __init__(self) -> None:
        self._trees: dict[int, PrefixTree] = {}
        self._bucket_of: dict[RequestId, int] = {}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._bucket_of

    def add(self, request: Request) -> None:
        """A request waits from now on.

        Raises:
            DuplicateRequestError: its id waits already.
        """
        if request.id in self._bucket_of:
            raise DuplicateRequestError(f"request {request.id} waits in the pool already")
        bucket = bucket_of(request.prompt_tokens)
        self._trees.setdefault(bucket, PrefixTree()).add(request)
        self._bucket_of[request.id] = bucket

    def remove(self, request_id: RequestId, *, runs: bool) -> None:
        """It waits no more; ``runs``: it was admitted, so its prefix goes on first.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        bucket = self._bucket_of.pop(request_id, None)
        if bucket is None:
            raise UnknownRequestError(f"request {request_id} does not wait in the pool")
        tree = self._trees[bucket]
        if runs:
            tree.take(request_id)
        else:
            tree.remove(request_id)
        if not len(tree):
            del self._trees[bucket]

    def heads(self, limit: int, *, near_tokens: int, each: int) -> list[Request]:
        """At most ``limit`` candidates: up to ``each`` of every prefix family, started ones first.

        Buckets take turns, the one nearest to ``near_tokens`` first: a batch of like lengths is the
        regular one.
        """
        nearest = bucket_of(near_tokens)
        order = sorted(self._trees, key=lambda bucket: (abs(bucket - nearest), bucket))
        sources = [_members(self._trees[bucket], each) for bucket in order]
        found: list[Request] = []
        while sources and len(found) < limit:
            sources = [source for source in sources if _advance(source, found)]
        return found[:limit]


def bucket_of(tokens: int) -> int:
    """The bucket of a length: each doubling is one."""
    return max(tokens, 1).bit_length()


def _members(tree: PrefixTree, each: int) -> Iterator[list[Request]]:
    for family in tree.families():
        yield list(islice(family, each))


def _advance(source: Iterator[list[Request]], found: list[Request]) -> bool:
    members = next(source, None)
    if members is None:
        return False
    found.extend(members)
    return True
