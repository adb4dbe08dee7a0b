"""Whose turn it is among tenants with waiting offline work.

Counts service and ranks tenants; which of a tenant's requests comes next is decided elsewhere.
"""

OUTPUT_WEIGHT = 2.0
"""What an output token counts against a prompt token."""

DEFAULT_QUANTUM_TOKENS = 32_768.0
"""About one document with its questions: switching tenants breaks prefix families."""


class VirtualTokenCounter:
    """The tenant that has been served least goes first, and stays first for a quantum.

    Service is counted in weighted tokens. A tenant that comes back with work starts at the level
    of the least served one that waits, so being away earns no credit. ``quantum_tokens`` is how far
    the tenant whose turn it is may get ahead of the least served one, >= 0.

    Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), Algorithm 2. The
    quantum is ours, as is counting the expected output at admission instead of each token.
    """

    __slots__ = ("_active", "_floor", "_quantum", "_ranking", "_served", "_turn")

    def __init__(self, *, quantum_tokens: float = DEFAULT_QUANTUM_TOKENS) -> None:
        self._quantum = quantum_tokens
        self._served: dict[str, float] = {}  # also of tenants away, while above the floor
        self._active: set[str] = set()
        self._floor = 0.0  # the least served level so far: it never falls
        self._turn: str | None = None
        self._ranking: tuple[str, ...] | None = None

    def join(self, tenant: str) -> None:
        """A tenant has waiting work again."""
        self._raise_floor()
        self._served = {
            name: level
            for name, level in self._served.items()
            if name in self._active or level > self._floor
        }
        self._served[tenant] = max(self._served.get(tenant, 0.0), self._floor)
        self._active.add(tenant)
        self._settle()

    def leave(self, tenant: str) -> None:
        """A tenant has no waiting work any more."""
        self._raise_floor()
        self._active.discard(tenant)
        self._settle()

    def charge(self, tenant: str, *, prompt_tokens: int, output_tokens: int) -> None:
        """Count a request of the tenant as served."""
        tokens = prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self._served[tenant] = self._served.get(tenant, self._floor) + tokens
        self._settle()

    def served_tokens(self, tenant: str) -> float:
        """The tenant's counter, in weighted tokens; the floor for one that is not known."""
        return self._served.get(tenant, self._floor)

    def ranking(self) -> tuple[str, ...]:
        """Tenants with waiting work: the one whose turn it is, then the least served first."""
        if self._ranking is None:
            self._ranking = self._rank()
        return self._ranking

    def _rank(self) -> tuple[str, ...]:
        order = sorted(self._active, key=self._level)
        if self._turn is None:
            return ()
        order.remove(self._turn)
        return (self._turn, *order)

    def _settle(self) -> None:
        """Decide whose turn it is: done by events, so that asking changes nothing."""
        self._ranking = None
        least = min(self._active, key=self._level, default=None)
        turn = self._turn if self._turn in self._active else None
        stays = turn is not None and least is not None and self._lead(turn, least) <= self._quantum
        self._turn = turn if stays else least

    def _lead(self, tenant: str, least: str) -> float:
        return self._served[tenant] - self._served[least]

    def _level(self, tenant: str) -> tuple[float, str]:
        return (self._served[tenant], tenant)

    def _raise_floor(self) -> None:
        if self._active:
            self._floor = max(self._floor, min(self._served[name] for name in self._active))
