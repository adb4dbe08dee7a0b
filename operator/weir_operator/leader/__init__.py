"""Which replica acts: an elector of our own on a Lease, and the watchdog that ends a lost leader.

The client library's elector loses track of time when the API server hangs.
"""
