"""Why an engine's process did not start: vLLM says so in that process's log, among its stacks.

Its client is told to look there.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Final, Self

from typing_extensions import override

_LOGGER: Final = "vllm.v1.engine.core"
_MOST_BYTES: Final = 4_000  # a pipe takes so many at once, whole


class StartFailure(logging.Filter):
    """Carries what an engine ends over out of its process, which is forked from this one.

    In effect within ``with``. An engine that is started by ``spawn`` has no part in it. A filter
    that lets all pass: vLLM sets logging up again in that process, which takes handlers away.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)

    def __enter__(self) -> Self:
        logging.getLogger(_LOGGER).addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(_LOGGER).removeFilter(self)
        os.close(self._read)
        os.close(self._write)

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """True; in the engine's process it notes the word for an error, without the stack."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):  # the start is over, and nobody reads it
                os.write(self._write, text.encode(errors="backslashreplace")[:_MOST_BYTES])
        return True

    def reason(self) -> str | None:
        """What the engine said; None when it said nothing, as when it was killed."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._read, _MOST_BYTES).decode(errors="replace") or None
        return None
