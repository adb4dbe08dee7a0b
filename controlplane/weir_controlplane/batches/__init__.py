"""Batches from creation to their output files; leasing their chunks is `dispatch`'s."""
