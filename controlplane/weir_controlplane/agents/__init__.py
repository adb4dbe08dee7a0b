"""The agents' side door: sync, chunk lines, results and commits over HTTP, and who the agents are.

What a lease is and how work is chosen belongs to `dispatch`.
"""
