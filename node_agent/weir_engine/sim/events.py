"""What happens at a set time in a simulation, in order: ties go to what was added first."""

from heapq import heappop, heappush
from math import inf

from weir_engine.sim.workload import RequestSpec


class Arrivals:
    """Requests that have yet to arrive."""

    __slots__ = ("_added", "_heap")

    def __init__(self, specs: tuple[RequestSpec, ...] = ()) -> None:
        self._heap: list[tuple[float, int, RequestSpec]] = []
        self._added = 0
        for spec in specs:
            self.add(spec)

    def add(self, spec: RequestSpec) -> None:
        """Schedule an arrival at the request's own time."""
        heappush(self._heap, (spec.arrival_s, self._added, spec))
        self._added += 1

    @property
    def next_s(self) -> float:
        """When the next one arrives; infinite if none does."""
        return self._heap[0][0] if self._heap else inf

    def due(self, now_s: float) -> list[RequestSpec]:
        """Take those that have arrived by ``now_s``, in order of arrival."""
        taken = []
        while self._heap and self._heap[0][0] <= now_s:
            taken.append(heappop(self._heap)[2])
        return taken
