"""`weir sim`, `weir plan` and `weir profile`: the engine's simulator from the command line.

Reads files, asks `weir_engine.sim`, shows what came out. Nothing here schedules.
"""
