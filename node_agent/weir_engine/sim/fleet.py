"""Several replicas in one run: a router gives each the online requests, offline work is pulled.

Virtual times of replicas differ by at most a step; an arrival is routed when all have reached it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from weir_engine.errors import ConfigError
from weir_engine.sim.loop import Feeder, Simulation, Window
from weir_engine.sim.records import RequestRecord, SimResult
from weir_engine.sim.workload import RequestSpec

MakeSimulation = Callable[[int, Feeder], Simulation]
"""A replica by its number, with the source of its offline requests."""


@dataclass(kw_only=True, slots=True)
class LeastTokens:
    """Routes to the replica with the fewest tokens to do; a group stays on the one it was given.

    A group moves when its replica has more than ``spill`` times the least loaded one's tokens and
    ``slack_tokens`` more: its prefix is worth a wait, not an unbounded one.
    """

    spill: float = 1.5
    slack_tokens: int = 8192

    def pick(self, waiting: Sequence[int], home: int | None) -> int:
        """The replica, from the tokens that wait on each; the first of equals."""
        least = min(range(len(waiting)), key=waiting.__getitem__)
        if home is not None and waiting[home] <= self.spill * waiting[least] + self.slack_tokens:
            return home
        return least


class Fleet:
    """``replicas`` simulations under one router and one queue of offline requests."""

    def __init__(
        self,
        make: MakeSimulation,
        *,
        replicas: int,
        online: Iterable[RequestSpec],
        offline: Iterable[RequestSpec],
        window_size: int,
        router: LeastTokens | None = None,
    ) -> None:
        if replicas < 1:
            raise ConfigError(f"replicas is {replicas}: give 1 or more")
        shared: Iterator[RequestSpec] = iter(offline)
        self._simulations = [make(i, Window(shared, size=window_size)) for i in range(replicas)]
        self._online = sorted(online, key=lambda spec: (spec.arrival_s, spec.id))
        self._next = 0
        self._router = router or LeastTokens()
        self._homes: dict[str, int] = {}

    def advance(self, until_s: float) -> None:
        """Simulate on, up to ``until_s``."""
        while self._next < len(self._online):
            spec = self._online[self._next]
            if spec.arrival_s > until_s:
                break
            for simulation in self._simulations:
                simulation.advance(spec.arrival_s)
            self._simulations[self._route(spec)].arrive(spec)
            self._next += 1
        for simulation in self._simulations:
            simulation.advance(until_s)

    def unfinished(self) -> tuple[RequestRecord, ...]:
        """Online requests that have arrived and not ended, on all replicas."""
        return tuple(r for simulation in self._simulations for r in simulation.unfinished())

    def results(self) -> tuple[SimResult, ...]:
        """What each replica has done so far."""
        return tuple(simulation.result() for simulation in self._simulations)

    def _route(self, spec: RequestSpec) -> int:
        home = self._homes.get(spec.group) if spec.group is not None else None
        waiting = [simulation.online_waiting_tokens for simulation in self._simulations]
        chosen = self._router.pick(waiting, home)
        if spec.group is not None:
            self._homes[spec.group] = chosen
        return chosen
