"""Weir's scheduling library: decisions about requests, KV blocks and step time.

Pure: no I/O, no clock, no randomness of its own, no torch, no vLLM. numpy is fine.
"""
