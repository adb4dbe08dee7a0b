"""How the agents' side of the control plane joins the application."""

from __future__ import annotations

from weir_controlplane.agents.chunk_endpoints import chunks_router
from weir_controlplane.agents.endpoints import agents_router
from weir_controlplane.agents.runtime import Runtime
from weir_controlplane.services import Component


def agents_component() -> Component:
    """Syncs, leases, results and commits, and the loops that watch over them."""
    runtime = Runtime()
    return Component(
        name="agents",
        startup=(runtime.start,),
        routers=(agents_router(runtime), chunks_router(runtime)),
        background=(
            runtime.refresh_forever,
            runtime.watch_forever,
            runtime.renew_forever,
            runtime.presence_forever,
            runtime.outlook_forever,
            runtime.demand_forever,
            runtime.sweep_forever,
        ),
    )
