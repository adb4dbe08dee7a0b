"""The files component."""

from __future__ import annotations

from weir_controlplane.files.endpoints import router
from weir_controlplane.files.service import sweep_forever
from weir_controlplane.services import Component


def files_component() -> Component:
    """`/v1/files`, and the removal of what is expired, deleted or abandoned."""
    return Component(name="files", routers=(router,), background=(sweep_forever,))
