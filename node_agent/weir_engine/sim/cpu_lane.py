"""Attention on host CPUs in virtual time: bounded by DRAM bandwidth, links and host memory.

It obeys plans; which requests come, go and advance is the scheduler's decision.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from weir_engine.errors import ConfigError, InvariantError
from weir_engine.ids import RequestId
from weir_engine.sched.piggyback import HANDLING_S
from weir_engine.sim.profiles import HardwareProfile, KernelTiming


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuHosts:
    """CPU hosts beside the GPUs: the GPUs' own and ``remote`` others (declared).

    ``memory_bytes`` is what each keeps for KV; ``network_bytes_s`` the link of each remote one.
    """

    remote: int = 0
    memory_bytes: float = 360e9
    network_bytes_s: float = 12.5e9


@dataclass(kw_only=True, slots=True)
class _Guest:
    """A request on the lane: where it is and how much of it there is."""

    host: int
    context_tokens: int
    layer: int = 0
    visit: int = 0  # raised at every move, so that what was queued before counts no more


@dataclass(slots=True)
class _Host:
    room_tokens: int
    free_s: float = 0.0
    link_free_s: float = 0.0
    guests: int = 0
    incoming: list[tuple[float, int, RequestId, int]] = field(default_factory=list)


class AttentionLane:
    """Implements ``CpuLaneView``. Each host serves attention jobs in the order they arrive.

    A job is one layer of one request: its KV of that layer is read once from DRAM, at the
    profile's bandwidth; query and result cross PCIe, and the network for a remote host. The local
    host fills first, then the remote ones evenly. KV moves over PCIe beside the steps, for a remote
    host over the network too: once before the first job, and once on the way back.

    Raises:
        ConfigError: the profile knows no layers.

    Source: OmniServe §3.2.3, §3.2.4, §4 (hierarchical CPU attention).
    """

    def __init__(self, profile: HardwareProfile, hosts: CpuHosts) -> None:
        timing = profile.timing
        if not isinstance(timing, KernelTiming):
            raise ConfigError(
                f"profile {profile.name} has no times by layer: a CPU lane needs one that has"
            )
        self._timing = timing
        self._profile = profile
        self._hosts_given = hosts
        self._layers = profile.model.layers
        room = int(hosts.memory_bytes // profile.model.kv_bytes_per_token)
        self._hosts = [_Host(room) for _ in range(1 + hosts.remote)]
        self._guests: dict[RequestId, _Guest] = {}
        self._results: list[tuple[float, int, RequestId, int]] = []
        self._ready: list[deque[tuple[RequestId, int]]] = [deque() for _ in range(self._layers)]
        self._counts = [0] * self._layers
        self._between: dict[RequestId, None] = {}
        self._landing: dict[RequestId, float] = {}
        self._pcie_free_s = 0.0
        self._order = 0

    # -- reading (CpuLaneView) --------------------------------------------------------------

    @property
    def room_tokens(self) -> int:
        """Tokens of KV that the emptiest host still takes."""
        return max(host.room_tokens for host in self._hosts)

    @property
    def landing(self) -> Collection[RequestId]:
        """Requests whose KV is on its way back."""
        return self._landing

    @property
    def ready(self) -> Sequence[int]:
        """Results that wait, by layer."""
        return self._counts

    @property
    def between_tokens(self) -> Sequence[RequestId]:
        """Requests at their first layer, the one longest there first."""
        return tuple(self._between)

    @property
    def next_s(self) -> float | None:
        """When something may be there that is not there now."""
        times = [queue[0][0] for queue in (self._results, *self._incoming()) if queue]
        return min([*times, *self._landing.values()], default=None)

    def __len__(self) -> int:
        return len(self._guests)

    # -- changing ---------------------------------------------------------------------------

    def take(self, request_id: RequestId, context_tokens: int, now_s: float) -> None:
        """A request's KV starts to leave the GPU; its first layer can be served when it is here.

        Raises:
            InvariantError: no host has room; the plan counted wrong.
        """
        at = self._emptiest(context_tokens)
        host = self._hosts[at]
        host.room_tokens -= context_tokens
        host.guests += 1
        there_s = self._over_network(at, context_tokens, self._over_pcie(context_tokens, now_s))
        self._guests[request_id] = _Guest(host=at, context_tokens=context_tokens)
        self._between[request_id] = None
        self._enqueue(request_id, there_s)

    def recall(self, request_id: RequestId, now_s: float) -> None:
        """A request's KV starts to go back to the GPU, the way that it came."""
        guest = self._guests[request_id]
        self.drop(request_id)
        here_s = self._over_network(guest.host, guest.context_tokens, now_s)
        self._landing[request_id] = self._over_pcie(guest.context_tokens, here_s)

    def drop(self, request_id: RequestId) -> None:
        """A request is here no more: it ended, or was preempted while landing."""
        self._landing.pop(request_id, None)
        guest = self._guests.pop(request_id, None)
        if guest is None:
            return
        host = self._hosts[guest.host]
        host.room_tokens += guest.context_tokens
        host.guests -= 1
        self._between.pop(request_id, None)
        queue = self._ready[guest.layer]
        if (request_id, guest.visit) in queue:
            queue.remove((request_id, guest.visit))
            self._counts[guest.layer] -= 1

    def poll(self, now_s: float) -> None:
        """Let time pass: hosts serve what had arrived, results and recalled requests turn up."""
        for host in self._hosts:
            while host.incoming and host.incoming[0][0] <= now_s:
                arrived_s, order, request_id, visit = heappop(host.incoming)
                guest = self._current(request_id, visit)
                if guest is not None:
                    self._serve(host, guest, arrived_s, order, request_id)
        while self._results and self._results[0][0] <= now_s:
            _, _, request_id, visit = heappop(self._results)
            guest = self._current(request_id, visit)
            if guest is not None:
                self._ready[guest.layer].append((request_id, visit))
                self._counts[guest.layer] += 1
        for request_id in [name for name, at_s in self._landing.items() if at_s <= now_s]:
            del self._landing[request_id]

    def advance(
        self, counts: Sequence[int], started_s: float, seconds: float
    ) -> tuple[RequestId, ...]:
        """A step took so many results at each layer; returns who got a token from it.

        Raises:
            InvariantError: fewer results wait; the plan counted wrong.
        """
        done = []
        moved: list[tuple[RequestId, int]] = []
        for layer, count in enumerate(counts):
            queue = self._ready[layer]
            if count > len(queue):
                raise InvariantError(f"layer {layer}: {count} results planned, {len(queue)} wait")
            self._counts[layer] -= count
            moved += [(queue.popleft()[0], layer) for _ in range(count)]
        for request_id, layer in moved:
            guest = self._guests[request_id]
            guest.layer = (layer + 1) % self._layers
            if guest.layer == 0:
                guest.context_tokens += 1
                self._hosts[guest.host].room_tokens -= 1
                self._between[request_id] = None
                done.append(request_id)
            else:
                self._between.pop(request_id, None)
            self._enqueue(request_id, started_s + seconds * (layer + 1) / self._layers)
        return tuple(done)

    def piggyback_s(self, tokens: int, counts: Sequence[int]) -> float:
        """What the results add to a step of ``tokens``: each layer's dense modules and transfers.

        Noiseless: the step that they ride on draws the noise.
        """
        alone_us = self._layer_us(tokens)
        added_us = sum(
            max(self._layer_us(tokens + count) - alone_us, 0.0) for count in counts if count
        )
        return added_us * 1e-6 + sum(counts) * HANDLING_S

    # -- parts ------------------------------------------------------------------------------

    def _incoming(self) -> list[list[tuple[float, int, RequestId, int]]]:
        return [host.incoming for host in self._hosts]

    def _current(self, request_id: RequestId, visit: int) -> _Guest | None:
        guest = self._guests.get(request_id)
        return guest if guest is not None and guest.visit == visit else None

    def _emptiest(self, context_tokens: int) -> int:
        """The local host while it has room, then the remote one with the fewest requests.

        Raises:
            InvariantError: none has room.
        """
        fitting = [at for at, host in enumerate(self._hosts) if host.room_tokens >= context_tokens]
        if not fitting:
            raise InvariantError(
                f"{context_tokens} tokens of KV do not fit on any CPU host: {self.room_tokens} left"
            )
        return min(fitting, key=lambda at: (at > 0, self._hosts[at].guests, at))

    def _over_pcie(self, tokens: int, now_s: float) -> float:
        start_s = max(now_s, self._pcie_free_s)
        self._pcie_free_s = start_s + self._profile.swap_s(tokens)
        return self._pcie_free_s

    def _over_network(self, at: int, tokens: int, now_s: float) -> float:
        """When KV is across a host's link, which moves one request at a time; local: at once."""
        if not at:
            return now_s
        host = self._hosts[at]
        size = tokens * self._profile.model.kv_bytes_per_token
        host.link_free_s = max(now_s, host.link_free_s) + size / self._hosts_given.network_bytes_s
        return host.link_free_s

    def _enqueue(self, request_id: RequestId, at_s: float) -> None:
        guest = self._guests[request_id]
        self._order += 1
        guest.visit = self._order
        delay_s = self._profile.cpu_exchange_s(1, remote=False)
        if guest.host:
            delay_s += self._remote_exchange_s()
        heappush(
            self._hosts[guest.host].incoming,
            (at_s + delay_s, self._order, request_id, guest.visit),
        )

    def _remote_exchange_s(self) -> float:
        cpu = self._profile.cpu
        size = self._profile.cpu_exchange_s(1, remote=True) - 2 * cpu.network_delay_s
        scale = cpu.network_bytes_s / self._hosts_given.network_bytes_s
        return 2 * cpu.network_delay_s + size * scale

    def _serve(
        self, host: _Host, guest: _Guest, arrived_s: float, order: int, request_id: RequestId
    ) -> None:
        start_s = max(host.free_s, arrived_s)
        host.free_s = start_s + self._profile.cpu_attention_s(guest.context_tokens)
        heappush(self._results, (host.free_s, order, request_id, guest.visit))

    def _layer_us(self, tokens: int) -> float:
        links = self._timing.links
        network_us = links.us(tokens, 1) if links.all_reduce is not None else 0.0
        return self._timing.dense.layer.us(max(tokens, 1)) + network_us
