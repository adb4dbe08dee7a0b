"""`weir demo`: everything on one machine, in one process tree.

Trace files, the processes, the live view and the closing table. The load generator and the arms
are `weir_cli.loadlab`, shared with the benchmarks.
"""
