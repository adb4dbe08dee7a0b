"""How many KV blocks a pod's online traffic is about to need: pure, numpy only.

Nothing here knows a database, a clock or what the number is used for (that is `policy`).
"""
