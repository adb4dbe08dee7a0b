"""What operators see of the queue, of many batches and many pods."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
from typing_extensions import override

from tests.controlplane.test_agents_elsewhere import replica
from tests.controlplane.test_dispatch_view import batch
from weir_controlplane.agents.queue import queued_batches
from weir_controlplane.agents.service import AgentService
from weir_controlplane.store.database import Database
from weir_controlplane.store.tenancy import Bindings


class CountedBindings(Bindings):
    """Every namespace is everybody's; counts how often a pod is looked at, by tenant."""

    looks: ClassVar[Counter[str]] = Counter()

    @override
    def may_use(self, tenant_id: str, service: str) -> bool:
        self.looks[tenant_id] += 1
        return service == f"{tenant_id}/svc"


@pytest.fixture
def agents(tmp_path: Path) -> AgentService:
    """A replica that knows a pod of each of the tenants t0 to t3, and 100 batches of each."""
    found = replica(Database(f"sqlite+aiosqlite:///{tmp_path / 'weir.db'}"), lambda: 100.0)
    for number in range(4):
        entry = found.registry.entry(f"pod-{number}")
        entry.service, entry.state, entry.seen_at = f"t{number}/svc", "serving", 100.0
        entry.models = {"m": "old" if number == 1 else "new"}
    found.registry.entry("pod-2").state = "draining"
    for number in range(400):
        item = batch(f"b{number}", chunk_lines=1, expires_in_s=1.0, tenant=f"t{number % 4}")
        item.revision = "new"
        found.view.batches[item.batch_id] = item
    found.view.batches["b0"].input_missing = True
    return found


def test_each_batch_has_its_own_reason(agents: AgentService) -> None:
    agents.view.bindings = CountedBindings()
    reasons = {item.batch_id: item.reason for item in queued_batches(agents)}
    assert [reasons[f"b{number}"] for number in range(5)] == [
        "InputMissing",
        "RevisionGone",
        "NoServingPod",
        None,
        None,
    ]


def test_pods_are_not_looked_at_anew_for_each_of_many_batches(agents: AgentService) -> None:
    """Thousands of both would keep a replica from its syncs, every few seconds."""
    agents.view.bindings = bindings = CountedBindings()
    bindings.looks.clear()
    queued_batches(agents)
    assert max(bindings.looks.values()) == 4
