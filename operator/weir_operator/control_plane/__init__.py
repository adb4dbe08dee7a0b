"""The control plane as the operator uses it: calls (docs/protocol.md), reports, and orphans.

Everything here is level-triggered; an unreachable control plane is a state, never an end.
"""
