"""An object of the file store while it is written, whatever the store is."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

from weir_controlplane.files.threads import in_thread

BLOCK_BYTES = 1 << 20


class StorageWriter:
    """An object being written. ``bytes`` and ``sha256`` are of everything written so far."""

    def __init__(
        self,
        handle: Any,  # noqa: ANN401 - a file object of fsspec's
        errors: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        """``errors``: turns what a failing store raises into the errors of `Storage`."""
        self.handle = handle
        self._errors = errors
        self.bytes = 0
        self._digest = hashlib.sha256()
        self._buffer = bytearray()

    def append(self, data: bytes) -> None:
        """Appends ``data``, blocking whenever there is a block of it."""
        if self._keep(data):
            self.flush_now()

    async def write(self, data: bytes) -> None:
        """Appends ``data``; it is kept back until there is a block of it."""
        if self._keep(data):
            await self.flush()

    async def flush(self) -> None:
        """Hands on what was kept back."""
        await in_thread(self.flush_now)

    def flush_now(self) -> None:
        """Hands on what was kept back, blocking."""
        block, self._buffer = self._buffer, bytearray()
        self._digest.update(block)
        view = memoryview(block)
        with self._errors():
            while view:
                written = self.handle.write(view)
                view = view[len(view) if written is None else written :]

    @property
    def sha256(self) -> str:
        """Hex digest of everything written and flushed; call `flush` first."""
        return self._digest.hexdigest()

    def _keep(self, data: bytes) -> bool:
        self.bytes += len(data)
        self._buffer += data
        return len(self._buffer) >= BLOCK_BYTES
