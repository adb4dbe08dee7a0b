"""The keys component."""

from __future__ import annotations

from weir_controlplane.keys.bootstrap import ensure_admin_key
from weir_controlplane.keys.endpoints import router
from weir_controlplane.keys.service import TOPIC
from weir_controlplane.services import Component, Services

_WAIT_S = 3600.0  # for a hint; without any, what is remembered ends by itself


async def forget_forever(services: Services) -> None:
    """Asks the database again for every key after a revocation by another replica."""
    while True:
        await services.nudge.wait(TOPIC, _WAIT_S)
        services.keys.forget()


def keys_component() -> Component:
    """Administration of tenants and keys."""
    return Component(
        name="keys",
        startup=(ensure_admin_key,),
        routers=(router,),
        background=(forget_forever,),
    )
