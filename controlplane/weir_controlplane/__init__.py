"""Weir's control plane: files and batches, dispatch, forecast and policy.

Meets the agent over HTTP only (docs/protocol.md).
"""
