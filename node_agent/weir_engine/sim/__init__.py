"""Virtual time: drives the production scheduler against a cost model of an engine.

The cost of a step is never the scheduler's own latency model. Seeded and deterministic.
"""
