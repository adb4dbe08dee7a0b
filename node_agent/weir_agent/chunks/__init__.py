"""Leased work: lines fetched, run in a bounded window, stored, uploaded and committed.

What a line runs on is the engine's business; who leases is the sync's.
"""
