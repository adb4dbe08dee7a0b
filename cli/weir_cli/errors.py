"""What a user sees when a command cannot do its work: one sentence, one remedy, an exit status."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses of `weir`, documented in docs/batch-api.md."""

    OK = 0
    FAILED = 1  # the work itself did not succeed: a failed batch, a broken file
    USAGE = 2  # a flag, an argument or a setting is wrong
    UNREACHABLE = 3  # the control plane does not answer
    REFUSED = 4  # the control plane answered with an error
    INTERNAL = 70  # a defect in weir
    INTERRUPTED = 130


class CliError(Exception):
    """Ends the command: ``message`` says what is wrong, ``remedy`` what to do about it."""

    def __init__(
        self, message: str, *, remedy: str | None = None, status: ExitStatus = ExitStatus.FAILED
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.status = status


class RefusedError(CliError):
    """The control plane has read the call and did nothing."""


class UnavailableError(CliError):
    """The control plane gives no answer now, or none of use: the same call may succeed later."""
