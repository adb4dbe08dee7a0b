"""The input file of a batch as a user names it: a file, a pipe, or standard input."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Buffer, override

from weir_cli.errors import CliError, ExitStatus

MAX_LINE_BYTES = 8 << 20  # no control plane can be set to take a longer one
STDIN = Path("-")


def name_of(file: Path) -> str:
    """What the control plane is told that the file is called."""
    if file == STDIN:
        return "stdin.jsonl"
    return file.name.encode(errors="surrogateescape").decode(errors="replace")  # may be no UTF-8


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """What the user submits, to read from its beginning; its size is known.

    Raises:
        CliError: it cannot be read.
    """
    try:
        with _given(file) as content, ExitStack() as stack:
            yield content if _is_whole(content) else stack.enter_context(_kept(content))
    except OSError as error:
        raise CliError(
            f"{file}: {error.strerror or error}", remedy="check the path", status=ExitStatus.USAGE
        ) from error


def _given(file: Path) -> AbstractContextManager[BinaryIO]:
    """A file that ends with its context, or standard input, which does not.

    Raises:
        CliError: standard input is closed.
        OSError: there is no such file.
    """
    if file != STDIN:
        return file.open("rb")
    if sys.stdin is None:
        raise CliError(
            "-: standard input is closed",
            remedy="name a file, or write `... | weir batch submit -`",
            status=ExitStatus.USAGE,
        )
    return nullcontext(sys.stdin.buffer)


def _is_whole(content: BinaryIO) -> bool:
    """Whether it is a file at its beginning: pipes have no size and cannot be read again."""
    return stat.S_ISREG(os.fstat(content.fileno()).st_mode) and content.tell() == 0


@contextmanager
def _kept(content: BinaryIO) -> Iterator[BinaryIO]:
    """What is left of a stream, in a file that nobody else sees and that goes with its context.

    Raises:
        CliError: there is no room for it.
    """
    with tempfile.TemporaryFile() as kept:
        try:
            shutil.copyfileobj(content, kept, 1 << 20)
            kept.seek(0)
        except OSError as error:
            raise CliError(
                f"{tempfile.gettempdir()}: {error.strerror or error}",
                remedy="what comes through a pipe is kept there until it is sent: set TMPDIR to a "
                "folder with room, or name a file",
            ) from error
        yield kept


def endpoint_of_first_line(file: Path, content: BinaryIO) -> str:
    """Read from ``content``, which is at its beginning again afterwards.

    Raises:
        CliError: there is none in it.
    """
    first = content.readline(MAX_LINE_BYTES)
    content.seek(0)
    if not first:
        raise CliError(
            f"{file}: it is empty",
            remedy="give a file with one JSON object a line",
            status=ExitStatus.USAGE,
        )
    try:
        endpoint = str(json.loads(first)["url"])
        endpoint.encode()  # half a character is text in JSON alone
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CliError(
            f"{file}, line 1: no `url` in it",
            remedy='every line is like {"custom_id": "1", "method": "POST", '
            '"url": "/v1/chat/completions", "body": {...}}; or name --endpoint',
            status=ExitStatus.USAGE,
        ) from None
    return endpoint


def unchanging(file: Path, content: BinaryIO, size_bytes: int) -> BinaryIO:
    """``content`` for as long as it has the size that it had: reading it raises CliError if not."""
    return io.BufferedReader(_Unchanging(file, content, size_bytes), 1 << 16)


class _Unchanging(io.RawIOBase):
    """Has no descriptor: who asks that one would announce a length that is true by then only."""

    def __init__(self, file: Path, content: BinaryIO, size_bytes: int) -> None:
        super().__init__()
        self._file = file
        self._content = content
        self._size_bytes = size_bytes

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END:
            return self._content.seek(self._size_bytes + offset)
        return self._content.seek(offset, whence)

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        place = memoryview(buffer)
        left = self._size_bytes - self._content.tell()
        piece = self._content.read(min(len(place), left))
        # Before the last piece is sent: a call without its end stores nothing.
        is_longer = len(piece) == left > 0 and self._content.read(1)
        if is_longer or (left and not piece):
            raise CliError(
                f"{self._file} changed while it was read",
                remedy="submit it again when it is complete",
            )
        place[: len(piece)] = piece
        return len(piece)
