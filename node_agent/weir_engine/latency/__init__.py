"""How long a step will take: features of a step, models over them, their errors.

Fitted from the engine's own steps; never reads a clock.
"""
