"""What the chart's hook Jobs run: the CRDs before an installation, the release before its end.

Run once and end; the operator itself never comes here.
"""
