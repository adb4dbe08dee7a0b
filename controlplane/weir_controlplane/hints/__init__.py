"""Hints between replicas that there is work. Losing them all costs a poll interval, nothing else.

Nothing may depend on a hint arriving, arriving once, or arriving in order (§8.13).
"""
