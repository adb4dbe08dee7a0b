"""Alembic migrations of the control plane, run by `store.migrate` only."""
