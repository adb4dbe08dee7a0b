"""Chunks as the unit of lease and of commit: who gets which, and what happens to what they did.

Pure decisions (order, placement, poison, splitting) and the transactions that carry them out.
HTTP, telemetry and policies belong to `agents`; merging results into files to `batches`.
"""
