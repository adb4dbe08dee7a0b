"""How clients name the file that they upload."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from weir_controlplane.files.multipart import FileBegin, form_events


async def begun(disposition: bytes) -> list[FileBegin]:
    async def body() -> AsyncIterator[bytes]:
        yield b"--b\r\nContent-Disposition: form-data; " + disposition + b"\r\n\r\nx\r\n--b--\r\n"

    events = [event async for event in form_events("multipart/form-data; boundary=b", body())]
    return [event for event in events if isinstance(event, FileBegin)]


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        (b"name=\"file\"; filename*=UTF-8''na%C3%AFve.jsonl", "na\u00efve.jsonl"),
        (b"name=\"file\"; filename*=utf-8'en'a%20b", "a b"),
        (b"name=\"file\"; filename*=ISO-8859-1''na%EFve", "na\u00efve"),
        (b'filename*="utf-8\'\'quoted"; name="file"', "quoted"),
        (b"name=\"file\"; filename*=undefined''%FF", "\ufffd"),
        (b'name="file"; filename*=utf-8\'\'better; filename="plain"', "plain"),
    ],
)
async def test_a_file_may_be_named_as_for_other_headers(disposition: bytes, filename: str) -> None:
    """Clients that send `filename*` alone were told that the form has no file."""
    assert await begun(disposition) == [FileBegin("file", filename)]


@pytest.mark.parametrize("rest", [b"", b"; filename*=", b"; filename*=utf-8", b"; filename*0*=a"])
async def test_a_field_without_a_file_name_is_no_file(rest: bytes) -> None:
    assert await begun(b'name="purpose"' + rest) == []
