"""Decisions of one step: who runs, for how many tokens, who gives way.

One file a seat; ``scheduler`` puts them together. Nothing here touches KV blocks or a clock.
"""
