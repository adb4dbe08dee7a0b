"""The batchjobs component."""

from __future__ import annotations

from weir_controlplane.batchjobs.endpoints import router
from weir_controlplane.batchjobs.leases import INPUTS, OUTPUTS
from weir_controlplane.batchjobs.service import TOPIC
from weir_controlplane.batchjobs.worker import WORKERS, Crew
from weir_controlplane.leases import void_leases
from weir_controlplane.services import Component
from weir_controlplane.store.kubernetes_models import BatchJob


def batchjobs_component() -> Component:
    """BatchJobs of Kubernetes."""
    crews = Crew(INPUTS, topic=TOPIC), Crew(OUTPUTS)
    return Component(
        name="batchjobs",
        startup=(void_leases(BatchJob),),
        routers=(router,),
        background=tuple(crew.work_forever for crew in crews) * WORKERS,
    )
