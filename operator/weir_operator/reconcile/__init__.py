"""Carries plans out: observe one object, plan it, execute the plan, say when to look again.

Knows no kind's meaning; what to do is decided in `planning`.
"""
