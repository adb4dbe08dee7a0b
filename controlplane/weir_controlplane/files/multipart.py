"""Multipart bodies as a stream of events: nothing is kept but the small form fields."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from weir_controlplane.errors import InvalidRequestError

MAX_FIELD_BYTES = 4096
MAX_PARTS = 20
MAX_HEADER_BYTES = 8192
_EXTENDED_FILENAME = re.compile(
    rb";\s*filename\*\s*=\s*\"?([\w-]+)'[\w-]*'([^\s;\"]*)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Field:
    """A form field, whole."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FileBegin:
    """The content of a file follows. ``filename`` is what the client said."""

    name: str
    filename: str


@dataclass(frozen=True, slots=True)
class FileData:
    """Some of the content of the file that began last."""

    data: bytes


Event = Field | FileBegin | FileData


class _Collector:
    """Parser callbacks; what they find waits in `events` until the body's next block."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = False
        self._parts = 0
        self._header_name = b""
        self._header_value = b""
        self._headers: dict[str, bytes] = {}
        self._field: bytearray | None = None
        self._name = ""

    def on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequestError(f"the form has more than {MAX_PARTS} parts")
        self._headers = {}

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]
        self._bound()

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]
        self._bound()

    def on_header_end(self) -> None:
        self._headers[self._header_name.decode("latin-1").lower()] = self._header_value
        self._header_name = self._header_value = b""

    def on_headers_finished(self) -> None:
        disposition = self._headers.get("content-disposition", b"")
        _, options = parse_options_header(disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        plain = options.get(b"filename")
        filename = (
            _extended_filename(disposition) if plain is None else plain.decode("utf-8", "replace")
        )
        if filename is None:
            self._field = bytearray()
            return
        self._field = None
        self.events.append(FileBegin(self._name, filename))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self.events.append(FileData(data[start:end]))
            return
        self._field += data[start:end]
        if len(self._field) > MAX_FIELD_BYTES:
            raise InvalidRequestError(
                f"{self._name[:100]}: longer than {MAX_FIELD_BYTES} bytes", param=self._name[:100]
            )

    def on_part_end(self) -> None:
        if self._field is not None:
            self.events.append(Field(self._name, self._field.decode("utf-8", "replace")))

    def on_end(self) -> None:
        self.ended = True

    def _bound(self) -> None:
        if len(self._header_name) + len(self._header_value) > MAX_HEADER_BYTES:
            raise InvalidRequestError("a part of the form has an endless header")


def _extended_filename(disposition: bytes) -> str | None:
    """A name as RFC 5987 writes it, which some clients send alone where it is not ASCII."""
    found = _EXTENDED_FILENAME.search(disposition)
    if found is None:
        return None
    encoding = "latin-1" if found[1].lower() == b"iso-8859-1" else "utf-8"
    return unquote_to_bytes(found[2]).decode(encoding, "replace")


async def form_events(content_type: str, body: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """What a multipart body holds, as it arrives.

    Raises:
        InvalidRequestError: the body is no multipart form, or it ends before the form does.
    """
    kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidRequestError(
            "send the file as multipart/form-data", param="file", code="invalid_content_type"
        )
    collector = _Collector()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": collector.on_part_begin,
                "on_part_data": collector.on_part_data,
                "on_part_end": collector.on_part_end,
                "on_header_field": collector.on_header_field,
                "on_header_value": collector.on_header_value,
                "on_header_end": collector.on_header_end,
                "on_headers_finished": collector.on_headers_finished,
                "on_end": collector.on_end,
            },
        )
        async for block in body:
            parser.write(block)
            for event in collector.events:
                yield event
            collector.events.clear()
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequestError(f"the form cannot be read: {error}", param="file") from error
    if not collector.ended:
        raise InvalidRequestError("the form was cut off", param="file", code="incomplete_body")
