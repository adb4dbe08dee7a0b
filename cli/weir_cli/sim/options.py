"""What options of simulations share: files that they name, choices, and errors that name them."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from weir_cli.errors import CliError, ExitStatus
from weir_engine.errors import ConfigError


@contextmanager
def named(option: str) -> Iterator[None]:
    """Turns what the engine finds wrong into a sentence about an option.

    Raises:
        CliError: in place of a ConfigError inside, or of a parser's that has met no such file.
    """
    try:
        yield
    except (ConfigError, csv.Error, RecursionError) as error:
        raise CliError(f"{option}: {error}", status=ExitStatus.USAGE) from error


def check_choice(option: str, given: str, choices: Sequence[str]) -> None:
    """Refuses a value that is none of the choices.

    Raises:
        CliError: it is none.
    """
    if given not in choices:
        raise CliError(
            f"{option}: {given!r} is unknown",
            remedy=f"give one of {', '.join(choices)}",
            status=ExitStatus.USAGE,
        )


def may_be_there(name: str) -> bool:
    """False where there is no such file; what keeps one from being read is told by who reads it."""
    try:
        return Path(name).exists()
    except OSError:  # a folder that may not be looked into, a name that is too long
        return True


def read_lines(path: Path) -> list[str]:
    """The lines of a file or a pipe, gzip-compressed or not; a byte order mark is none of them.

    They end where lines of files do, not at every character that Unicode takes for the end of one:
    text in JSON may hold those.

    Raises:
        CliError: it cannot be read.
    """
    try:
        content = path.read_bytes()  # once: a pipe cannot be read again
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        with io.StringIO(content.decode("utf-8-sig"), newline=None) as text:
            return [line.rstrip("\n") for line in text]
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise CliError(
            f"{path}: {why}", remedy="give a readable text file", status=ExitStatus.USAGE
        ) from error
