"""The keys component."""

from __future__ import annotations

from weir_controlplane.keys.bootstrap import ensure_admin_key
from weir_controlplane.keys.endpoints import router
from weir_controlplane.services import Component


def keys_component() -> Component:
    """Administration of tenants and keys."""
    return Component(name="keys", startup=(ensure_admin_key,), routers=(router,))
