"""Load for a live engine, and what it measures: shared by the demo and the benchmarks.

Workloads are deterministic in their seed; clients speak plain HTTP and import neither the agent nor
the control plane. How results are judged and printed belongs to the callers.
"""
