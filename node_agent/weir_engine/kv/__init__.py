"""KV blocks: who holds them, what is cached in them, which is given up first.

Counts and ids only; the tensors live in the engine.
"""
