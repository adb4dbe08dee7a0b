"""What the scheduler sees of attention on host CPUs. Reading only; each backend has its own lane.

A request on the lane decodes there: its KV lies in host memory and a CPU computes its attention
layer by layer; the GPU does its dense modules when a step takes the result along (piggybacking).
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from weir_engine.ids import RequestId


class CpuLaneView(Protocol):
    """The lane as it stands when a step is planned."""

    @property
    def room_tokens(self) -> int:
        """Tokens of KV that host memory still takes."""
        ...

    @property
    def landing(self) -> Collection[RequestId]:
        """Requests that were recalled and whose KV is still on its way to the GPU."""
        ...

    @property
    def ready(self) -> Sequence[int]:
        """Attention results that wait for the GPU, ``(layers,)``: a count for each model layer."""
        ...

    @property
    def between_tokens(self) -> Sequence[RequestId]:
        """Requests whose last token is complete in all layers, so that a move loses no work."""
        ...

    @property
    def next_s(self) -> float | None:
        """When the next result or recalled request may be there; None without any."""
        ...
