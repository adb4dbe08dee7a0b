"""The batchjobs component."""

from __future__ import annotations

from weir_controlplane.batchjobs.endpoints import router
from weir_controlplane.batchjobs.worker import WORKERS, Crew
from weir_controlplane.leases import void_leases
from weir_controlplane.services import Component
from weir_controlplane.store.kubernetes_models import BatchJob


def batchjobs_component() -> Component:
    """BatchJobs of Kubernetes."""
    return Component(
        name="batchjobs",
        startup=(void_leases(BatchJob),),
        routers=(router,),
        background=(Crew().work_forever,) * WORKERS,
    )
