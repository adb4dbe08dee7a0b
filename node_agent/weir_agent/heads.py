"""Connections whose requests have a bounded head: the server has no bound of its own.

One client could hold up the others for seconds: what came of a head is read with each piece of it.
"""

from __future__ import annotations

import asyncio

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536  # request line and headers; read again and again while it grows
HEAD_WITHIN_S = 60.0  # of the connection, or of its first byte where others came before it


class BoundedHeads(HttpToolsProtocol):
    """Ends a connection whose next head is too large or too slow."""

    _late: asyncio.TimerHandle | None = None  # set while a head is due
    _head_bytes = 0
    _in_body = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    @override
    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:  # idle until now, or answered amid a body
            self._expect_head()
        # A body that nobody reads is taken and dropped, as long as it ends in time: a client that
        # is cut off while it sends may never see its answer.
        self._head_bytes += 0 if self._in_body else len(data)
        super().data_received(data)
        if self._late is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(f"request line and headers have more than {MAX_HEAD_BYTES} bytes")

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()
        self._head_bytes = max(self._head_bytes, 1)  # it may begin amid what came

    @override
    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._in_body = True
        super().on_headers_complete()

    @override
    def on_message_complete(self) -> None:
        self._in_body = False
        if self._late is not None:  # the next head has all of its time
            self._stop_waiting()
            self._expect_head()
        super().on_message_complete()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._late is None:
            self._head_bytes = 0
            words = f"request line and headers did not come within {HEAD_WITHIN_S:g} s"
            self._late = self.loop.call_later(HEAD_WITHIN_S, self._refuse, words)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, words: str) -> None:
        self._stop_waiting()
        if self._head_bytes and getattr(self.cycle, "response_complete", True):
            self.send_400_response(words)
        else:  # nobody has asked anything, or an answer is under way
            self.transport.close()
