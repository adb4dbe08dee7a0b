"""How hints join the application: over Redis when there is one, inside the process otherwise."""

from __future__ import annotations

import asyncio

from weir_controlplane.hints.redis_streams import RedisNudge
from weir_controlplane.services import Component, LocalNudge, Nudge, Services
from weir_controlplane.settings import Settings


def make_nudge(settings: Settings) -> Nudge:
    """The `Nudge` that the settings ask for."""
    if settings.redis_url is None:
        return LocalNudge()
    return RedisNudge(settings.redis_url.get_secret_value())


def hints_component() -> Component:
    """Listens to the other replicas where hints come over Redis."""
    return Component(name="hints", background=(_listen,))


async def _listen(services: Services) -> None:
    nudge = services.nudge
    if isinstance(nudge, RedisNudge):
        try:
            await nudge.listen()
        finally:
            await nudge.close()
    else:
        await asyncio.Event().wait()
