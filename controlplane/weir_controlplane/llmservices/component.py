"""`/internal/v1/services`, for the operator (docs/protocol.md), and the directory of pods."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, status

from weir_controlplane.keys.auth import OperatorDep
from weir_controlplane.llmservices import service
from weir_controlplane.llmservices.schemas import PutService, ServiceList, ServiceStatus
from weir_controlplane.services import Component, Services, ServicesDep

Namespace = Annotated[str, Path(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Name = Annotated[str, Path(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
router = APIRouter(prefix="/internal/v1/services")


@router.put("/{namespace}/{name}")
async def put_service(
    namespace: Namespace,
    name: Name,
    body: PutService,
    _operator: OperatorDep,
    services: ServicesDep,
) -> ServiceStatus:
    """Registers a service with the pods that it has, and says how they do."""
    await service.put_service(services, namespace, name, body)
    async with services.database.read() as session:
        found = await service.service_statuses(services, session, f"{namespace}/{name}")
    return found[0]


@router.get("")
async def list_services(_operator: OperatorDep, services: ServicesDep) -> ServiceList:
    """Every registered service."""
    async with services.database.read() as session:
        return ServiceList(data=await service.service_statuses(services, session))


@router.delete("/{namespace}/{name}", status_code=status.HTTP_204_NO_CONTENT)
async def remove_service(
    namespace: Namespace, name: Name, _operator: OperatorDep, services: ServicesDep
) -> None:
    """Forgets a service with all its pods; safe to repeat."""
    await service.remove_service(services, namespace, name)


async def read_pods(services: Services) -> None:
    """Reads the registered pods at start."""
    await services.pods.read(services.database)


async def read_pods_forever(services: Services) -> None:
    """Keeps the directory of pods current: after hints, and every ``poll_s`` without any."""
    while True:
        await services.nudge.wait(service.TOPIC, services.settings.poll_s)
        await services.pods.read(services.database)


def llmservices_component() -> Component:
    """LLMServices of Kubernetes."""
    return Component(
        name="llmservices",
        startup=(read_pods,),
        routers=(router,),
        background=(read_pods_forever,),
    )
