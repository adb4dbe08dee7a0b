"""Makes what `make e2e` needs before its first test; `.ci/run` does this beside the other tests."""

from __future__ import annotations

import sys

from e2e.cluster import binaries
from e2e.support.platform import build_images


def main() -> int:
    """Provides the programs and builds the images; the exit status."""
    status = binaries.main(["api", "helm", "node"])
    if status == 0:
        build_images()
    return status


if __name__ == "__main__":
    sys.exit(main())
