"""Grafana dashboards and Prometheus alerts, as code; `make docs` writes them into the chart.

Every expression is run on a real Prometheus by tests/observability.
"""
