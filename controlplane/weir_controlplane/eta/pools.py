"""Which pods run which batches, and how fast: services that the same batches may use are a pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from weir_controlplane.agents.registry import AgentEntry
from weir_controlplane.dispatch.batch_view import BatchView
from weir_controlplane.dispatch.reasons import FleetPod
from weir_controlplane.eta.predict import Pool, RateEvidence, pooled, rate_of
from weir_controlplane.store.tenancy import Bindings

Rates = Mapping[tuple[str, str], float]  # tokens a second, by model and service
_NOBODY = frozenset({""})  # the services of a model that no pod can run now


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetNow:
    """The live agents: ``pods`` of them take batch lines now."""

    pods: Collection[FleetPod]
    entries: Collection[AgentEntry]
    bindings: Bindings

    def services(self, model: str, batches: Iterable[BatchView]) -> dict[str, frozenset[str]]:
        """The services whose pods may run each of these batches of one model, by batch.

        One that none of them may run is expected as if all might.
        """
        everyone = frozenset(pod.service for pod in self.pods if model in pod.models) or _NOBODY
        found: dict[str, frozenset[str]] = {}
        known: dict[tuple[str, str | None], frozenset[str]] = {}
        for batch in batches:
            wanted = (batch.tenant_id, batch.service)
            if wanted not in known:
                known[wanted] = frozenset(
                    service
                    for service in everyone
                    if batch.service in {None, service}
                    and self.bindings.may_use(batch.tenant_id, service)
                )
            found[batch.batch_id] = known[wanted] or everyone
        return found


class Pools:
    """Finds the pools of a model, and remembers how fast they were."""

    def __init__(self, *, chunk_tokens: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._before: dict[tuple[str, str], float] = {}

    def of(
        self, model: str, used: Iterable[frozenset[str]], fleet: FleetNow, committed: Rates
    ) -> list[Pool]:
        """The pools of a model whose batches may use these sets of services."""
        self._before |= {key: rate for key, rate in committed.items() if rate > 0}
        return [
            Pool(
                services=services,
                tokens_per_s=rate_of(
                    self._evidence(model, services, fleet, committed),
                    chunk_tokens=self._chunk_tokens,
                ),
            )
            for services in pooled(set(used))
        ]

    def _evidence(
        self, model: str, services: frozenset[str], fleet: FleetNow, committed: Rates
    ) -> RateEvidence:
        told = [
            entry.telemetry
            for entry in fleet.entries
            if entry.service in services and model in entry.models and entry.telemetry is not None
        ]
        return RateEvidence(
            committed=_sum(committed, model, services),
            told=sum(item.offline_served_tokens / item.window_s for item in told if item.window_s),
            before=_sum(self._before, model, services),
            pods=sum(pod.service in services and model in pod.models for pod in fleet.pods),
        )


def _sum(rates: Rates, model: str, services: frozenset[str]) -> float:
    """What is known of these services, of all where no pod can run the model."""
    return sum(
        rate
        for (name, service), rate in rates.items()
        if name == model and (service in services or services == _NOBODY)
    )
