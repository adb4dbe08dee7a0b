"""Requests for KV tests, made from token lists so that equal prefixes have equal hashes."""

from collections.abc import Sequence

from weir_engine.ids import BlockHash, RequestClass, RequestId
from weir_engine.request import Request


def chained_hashes(tokens: Sequence[int], block_size: int) -> list[BlockHash]:
    full = len(tokens) // block_size
    return [hash(tuple(tokens[: (at + 1) * block_size])) for at in range(full)]


def make_request(
    name: str, tokens: Sequence[int], *, block_size: int, online: bool = False
) -> Request:
    return Request(
        id=RequestId(name),
        klass=RequestClass.ONLINE if online else RequestClass.OFFLINE,
        arrival_s=0.0,
        prompt_tokens=len(tokens),
        max_output_tokens=8,
        block_hashes=chained_hashes(tokens, block_size),
    )
