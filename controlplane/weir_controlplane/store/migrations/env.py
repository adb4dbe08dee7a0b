"""Alembic's entry: runs the migrations on the connection that `store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from weir_controlplane.store.kubernetes_models import BatchJob


def main() -> None:
    """Runs the migrations inside the caller's transaction.

    Raises:
        RuntimeError: Alembic was started by hand; the control plane migrates at its start.
    """
    connection = context.config.attributes.get("connection")
    if connection is None:
        raise RuntimeError("migrations run at the start of `weir serve controlplane`")
    context.configure(connection=connection, target_metadata=BatchJob.metadata, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


main()
