"""Decides: from what was observed of one object to what should be.

Pure functions over frozen values: no clock, no I/O, no Kubernetes or HTTP client. Whoever executes
a `Plan` needs no knowledge of LLMServices or BatchJobs.
"""
