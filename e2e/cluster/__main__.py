"""`make cluster`: a cluster on this machine until Ctrl-C, with the kubeconfig to reach it."""

from __future__ import annotations

import signal
import sys

from e2e.cluster.binaries import Binaries, NoBinaryError
from e2e.cluster.cluster import ClusterError, running
from e2e.cluster.component import ComponentError
from e2e.cluster.footprint import RemainsError
from e2e.cluster.network import NetworkError
from e2e.cluster.node import ImageError
from e2e.cluster.packages import MissingPackageError

ERRORS = (
    ClusterError,
    ComponentError,
    ImageError,
    MissingPackageError,
    NetworkError,
    NoBinaryError,
    RemainsError,
)


def main() -> int:
    """Runs until it is interrupted; the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with running(Binaries()) as (api, _):
            print(f"export KUBECONFIG={api.kubeconfig}", flush=True)
            print("The node is Ready. Ctrl-C ends the cluster and removes it.", file=sys.stderr)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except ERRORS as error:
        print("\n".join((str(error), *getattr(error, "__notes__", ()))), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
