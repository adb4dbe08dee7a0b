"""What options of simulations share: files that they name, choices, and errors that name them."""

from __future__ import annotations

import csv
import gzip
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


def read_lines(path: Path) -> list[str]:
    """The lines of a file, gzip-compressed or not.

    Raises:
        CliError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        if packed:
            with gzip.open(path, "rt", encoding="utf-8") as text:
                return text.read().splitlines()
        return path.read_text("utf-8").splitlines()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise CliError(
            f"{path}: {why}", remedy="give a readable text file", status=ExitStatus.USAGE
        ) from error
