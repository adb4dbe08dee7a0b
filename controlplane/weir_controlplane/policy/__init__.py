"""What a pod may give to offline work: pure, from a forecast and the pod's last telemetry.

Nothing here knows a database or how a policy travels.
"""
