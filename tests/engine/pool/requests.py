"""Offline requests for pool tests: each letter of the prompt is one block."""

from collections.abc import Sequence

from weir_engine.ids import BlockHash, RequestClass, RequestId
from weir_engine.request import Request


def chained_hashes(blocks: Sequence[str]) -> list[BlockHash]:
    return [hash(tuple(blocks[: at + 1])) for at in range(len(blocks))]


def make_request(
    name: str,
    blocks: Sequence[str],
    *,
    arrival_s: float = 0.0,
    tenant: str = "",
    deadline_s: float | None = None,
    output_tokens: int | None = None,
) -> Request:
    return Request(
        id=RequestId(name),
        klass=RequestClass.OFFLINE,
        arrival_s=arrival_s,
        prompt_tokens=100,
        max_output_tokens=10,
        expected_output_tokens=output_tokens,
        block_hashes=chained_hashes(blocks),
        tenant=tenant,
        deadline_s=deadline_s,
    )


def shared_blocks(one: Request, other: Request) -> int:
    """Leading blocks that two requests have in common."""
    shared = 0
    for mine, theirs in zip(one.block_hashes, other.block_hashes, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def names(requests: Sequence[Request]) -> list[str]:
    return [request.id for request in requests]
