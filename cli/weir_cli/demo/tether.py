"""`python -m weir_cli.demo.tether COMMAND...`: runs a command that ends when its parent does.

Covers a demo that is killed and can stop nobody itself. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tethered(command: Sequence[str]) -> list[str]:
    """The command that runs ``command`` tethered to the process that starts it."""
    return [sys.executable, "-m", "weir_cli.demo.tether", *command]


def main() -> None:
    """Becomes the command; SIGTERM will come when the parent is gone."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # gone before the request was made
        sys.exit(1)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the caller's own command


if __name__ == "__main__":
    main()
