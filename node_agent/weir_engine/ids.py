"""Names that every other module uses: request ids, block ids, request classes.

No behaviour belongs here.
"""

from enum import IntEnum
from typing import NewType

RequestId = NewType("RequestId", str)
BlockId = NewType("BlockId", int)

BlockHash = int | bytes
"""Content hash of one full KV block, chained over its prefix: equal hashes mean equal prefixes."""


class RequestClass(IntEnum):
    """Whether a user waits for the request. The order is the order of service."""

    ONLINE = 0
    OFFLINE = 1
