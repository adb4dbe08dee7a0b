"""The batches component."""

from __future__ import annotations

from weir_controlplane.batches.endpoints import router
from weir_controlplane.batches.leftovers import release_forever
from weir_controlplane.batches.metrics import watch_batches_forever
from weir_controlplane.batches.worker import work_forever
from weir_controlplane.leases import void_leases
from weir_controlplane.services import Component
from weir_controlplane.store.models import Batch

WORKERS = 2  # one long batch must not hold up the others


def batches_component() -> Component:
    """`/v1/batches`, and what happens to batches before and after their chunks are leased."""
    return Component(
        name="batches",
        startup=(void_leases(Batch),),
        routers=(router,),
        background=(*(work_forever,) * WORKERS, release_forever, watch_batches_forever),
    )
