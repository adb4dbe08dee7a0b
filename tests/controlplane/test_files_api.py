"""`/v1/files` (openai-batch-surface, design.md §8.7, §8.8)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from tests.controlplane.support import Plane, eventually, make_settings, running, stored_files
from weir_controlplane.files.service import sweep
from weir_controlplane.files.upload import Uploads
from weir_controlplane.store.models import File

STANDING = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
async def plane(tmp_path: Path, database_url: str) -> AsyncIterator[Plane]:
    settings = make_settings(tmp_path, database_url, max_file_bytes=300_000, sweep_s=3600)
    async with running(settings) as plane:
        yield plane


async def test_a_file_comes_back_as_it_went_in(client: openai.AsyncOpenAI) -> None:
    content = "é\n".encode() * 50_000
    file = await client.files.create(file=("ü.jsonl", content), purpose="batch")
    assert file.model_dump(exclude={"id", "created_at"}) == {
        "bytes": len(content),
        "filename": "ü.jsonl",
        "object": "file",
        "purpose": "batch",
        "status": "processed",
        "expires_at": None,
        "status_details": None,
    }
    assert (await client.files.content(file.id)).content == content
    assert await client.files.retrieve(file.id) == file
    deleted = await client.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(file.id)
    with pytest.raises(openai.NotFoundError):
        await client.files.delete(file.id)


async def test_deleting_a_file_frees_its_room(plane: Plane, client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=b"x", purpose="batch")
    assert stored_files(plane) == [file.id]
    await client.files.delete(file.id)
    assert stored_files(plane) == []


async def test_a_file_that_is_gone_from_the_store_is_told_and_logged(
    plane: Plane, client: openai.AsyncOpenAI, raw: httpx.AsyncClient
) -> None:
    file = await client.files.create(file=b"x", purpose="batch")
    (path,) = (plane.services.settings.data_dir / "files").rglob(file.id)
    path.unlink()
    with capture_logs() as logs:
        answer = await raw.get(f"/v1/files/{file.id}/content")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
    (told,) = [log for log in logs if log["event"] == "request_failed"]
    assert file.id in told["path"]
    assert told["cause"].startswith("FileNotFoundError: ")


async def test_lists_go_page_by_page_and_survive_deletion(client: openai.AsyncOpenAI) -> None:
    """§8.7: list cursors survive deletion."""
    ids = [(await client.files.create(file=b"x", purpose="batch")).id for _ in range(5)]
    await client.files.create(file=b"x", purpose="user_data")
    seen = [file.id async for file in client.files.list(limit=2, purpose="batch")]
    assert seen == ids[::-1]
    seen = [file.id async for file in client.files.list(limit=2, order="asc", purpose="batch")]
    assert seen == ids
    page = await client.files.list(limit=2, order="asc")
    assert page.has_more
    await client.files.delete(ids[1])
    after = await client.files.list(limit=2, order="asc", after=ids[1])
    assert [file.id for file in after.data] == ids[2:4]
    last = await client.files.list(after=ids[0], purpose="batch")
    assert (last.data, last.has_more) == ([], False)


async def test_a_slow_upload_comes_after_what_was_listed_meanwhile(
    plane: Plane, client: openai.AsyncOpenAI, raw: httpx.AsyncClient
) -> None:
    """Who goes on from the last file that they have seen misses none; its life begins then too."""
    goes_on, begun = asyncio.Event(), asyncio.Event()
    fields = {"purpose": "batch", "expires_after[anchor]": "created_at"}
    fields["expires_after[seconds]"] = "3600"
    request = raw.build_request("POST", "/v1/files", data=fields, files={"file": ("a", b"x")})
    form = request.read()

    async def slowly() -> AsyncIterator[bytes]:
        yield form[:-10]
        begun.set()
        await goes_on.wait()
        yield form[-10:]

    headers = {name: request.headers[name] for name in ("content-type", "content-length")}
    slow = asyncio.create_task(raw.post("/v1/files", content=slowly(), headers=headers))
    await begun.wait()

    async def is_known() -> bool:
        async with plane.services.database.read() as session:
            return (await session.execute(select(File.id))).first() is not None

    await eventually(is_known)
    seen = await client.files.create(file=b"x", purpose="batch")
    await asyncio.sleep(1.1)
    goes_on.set()
    file = (await slow).json()
    page = await client.files.list(order="asc", after=seen.id)
    assert [item.id for item in page.data] == [file["id"]]
    assert file["expires_at"] - file["created_at"] == 3600
    assert file["created_at"] > seen.created_at


async def test_an_expiry_is_kept_and_bounded(
    plane: Plane, client: openai.AsyncOpenAI, raw: httpx.AsyncClient
) -> None:
    file = await client.files.create(
        file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at is not None
    assert 3595 <= file.expires_at - file.created_at <= 3605
    for data in (
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"},
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"},
        {"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"},
        {"expires_after[anchor]": "created_at"},
    ):
        answer = await raw.post(
            "/v1/files", data={"purpose": "batch", **data}, files={"file": ("a", b"x")}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "expires_after"
    assert stored_files(plane) == [file.id]


async def test_expired_and_abandoned_files_are_swept(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    kept = await client.files.create(file=b"x", purpose="batch")
    expired = await client.files.create(file=b"x", purpose="batch")
    async with plane.services.database.transaction() as session:
        await session.execute(update(File).where(File.id == expired.id).values(expires_at=1.0))
        session.add(
            File(
                id="file-half", tenant_id=await _tenant_id(plane), filename="", purpose="",
                size_bytes=0, status="uploading", storage_key="files/file-half", created_at=1.0,
            )
        )  # fmt: skip
    async with plane.services.storage.writer("files/file-half") as writer:
        await writer.write(b"half")
    await sweep(plane.services)
    assert stored_files(plane) == [kept.id]
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(expired.id)


async def test_files_go_as_fast_as_they_expire(
    plane: Plane, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is over when nothing is left, not after so many."""
    monkeypatch.setattr("weir_controlplane.files.service._SWEEP_ROWS", 2)
    files = [await client.files.create(file=b"x", purpose="batch") for _ in range(5)]
    async with plane.services.database.transaction() as session:
        expired = update(File).where(File.id.in_([file.id for file in files]))
        await session.execute(expired.values(expires_at=1.0))
    await sweep(plane.services)
    assert stored_files(plane) == []


async def _tenant_id(plane: Plane) -> str:
    async with plane.services.database.read() as session:
        return (await session.execute(select(File.tenant_id).limit(1))).scalar_one()


async def test_a_file_over_the_bound_is_refused_and_leaves_nothing(
    plane: Plane, client: openai.AsyncOpenAI, raw: httpx.AsyncClient
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await client.files.create(file=b"x" * 300_001, purpose="batch")
    assert caught.value.status_code == 413
    assert caught.value.param == "file"

    async def endless() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        while True:
            yield b"x" * 65_536

    with contextlib.suppress(httpx.HTTPError):  # the server may stop reading first
        answer = await raw.post(
            "/v1/files",
            content=endless(),
            headers={"Content-Type": "multipart/form-data; boundary=b"},
        )
        assert answer.status_code == 413
    await _wait_until_nothing_is_stored(plane)
    assert (await client.files.create(file=b"x" * 300_000, purpose="batch")).bytes == 300_000


async def _wait_until_nothing_is_stored(plane: Plane) -> None:
    async def clean() -> bool:
        async with plane.services.database.read() as session:
            return not stored_files(plane) and not (await session.execute(select(File.id))).all()

    await eventually(clean)


@STANDING
@pytest.mark.parametrize(
    ("content_type", "body", "param"),
    [
        ("application/json", b"{}", "file"),
        ("multipart/form-data", b"", "file"),
        ("multipart/form-data; boundary=b", b"nonsense", "file"),
        ("multipart/form-data; boundary=b", b"--b\r\n", "file"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhalf',
            "file",
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n',
            "file",
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n'
            + b"x" * 5000
            + b"\r\n--b--\r\n",
            "purpose",
        ),
    ],
)
async def test_a_broken_form_names_the_field_and_leaves_nothing(
    standing: Plane, tenant: httpx.AsyncClient, content_type: str, body: bytes, param: str
) -> None:
    answer = await tenant.post("/v1/files", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    await _wait_until_nothing_is_stored(standing)


@STANDING
@pytest.mark.parametrize("purpose", ["", "dinner", None])
async def test_the_purpose_must_be_known(
    standing: Plane, tenant: httpx.AsyncClient, purpose: str | None
) -> None:
    data = {} if purpose is None else {"purpose": purpose}
    answer = await tenant.post("/v1/files", data=data, files={"file": ("a", b"x")})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "purpose"
    assert stored_files(standing) == []


async def test_an_upload_whose_end_was_not_heard_is_whole(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.8: committed, and the answer of the database was lost: the file is listed with content."""
    finish = Uploads._finish

    async def lose(self: Uploads, *arguments: Any, **given: Any) -> None:  # noqa: ANN401
        await finish(self, *arguments, **given)
        raise ConnectionError("lost")

    monkeypatch.setattr(Uploads, "_finish", lose)
    with pytest.raises(openai.APIStatusError):
        await client.with_options(max_retries=0).files.create(file=b"x" * 10, purpose="batch")
    (file,) = [file async for file in client.files.list()]
    assert (await client.files.content(file.id)).content == b"x" * 10


async def test_a_users_name_for_a_file_reaches_no_path(
    plane: Plane, raw: httpx.AsyncClient
) -> None:
    """§8.8: names are generated, never the user's."""
    answer = await raw.post(
        "/v1/files",
        data={"purpose": "batch"},
        files={"file": ("../../etc/passwd\x07" + "a" * 300, b"x")},
    )
    file = answer.json()
    assert len(file["filename"]) == 255
    assert "\x07" not in file["filename"]
    assert stored_files(plane) == [file["id"]]


async def test_another_tenants_file_is_not_found(plane: Plane, client: openai.AsyncOpenAI) -> None:
    """§8, Tenancy."""
    file = await client.files.create(file=b"x", purpose="batch")
    other = await plane.tenant_key("other")
    async with plane.client(other) as stranger:
        assert (await stranger.get("/v1/files")).json()["data"] == []
        for method, path in (
            ("GET", f"/v1/files/{file.id}"),
            ("GET", f"/v1/files/{file.id}/content"),
            ("DELETE", f"/v1/files/{file.id}"),
            ("GET", f"/v1/files?after={file.id}"),
        ):
            answer = await stranger.request(method, path)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["type"] == "invalid_request_error"
    assert (await client.files.retrieve(file.id)).id == file.id


@STANDING
@pytest.mark.parametrize(
    "query", ["limit=0", "limit=10001", "limit=x", "order=up", "after=file-none"]
)
async def test_a_wrong_query_names_the_parameter(tenant: httpx.AsyncClient, query: str) -> None:
    answer = await tenant.get(f"/v1/files?{query}")
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["param"] == query.split("=", maxsplit=1)[0]


@STANDING
@pytest.mark.parametrize(
    "path", ["/v1/files/%00", "/v1/files?after=%00", "/v1/files?purpose=%00", "/v1/batches/a%00b"]
)
async def test_a_nul_character_is_bad_input(tenant: httpx.AsyncClient, path: str) -> None:
    assert (await tenant.get(path)).status_code == 400


async def test_unknown_paths_and_methods_answer_in_the_envelope(raw: httpx.AsyncClient) -> None:
    for method, path, status, allowed in (
        ("GET", "/v1/nothing", 404, None),
        ("PATCH", "/v1/files", 405, "GET, POST"),
        ("PATCH", "/v1/files/file-1", 405, "DELETE, GET"),
    ):
        answer = await raw.request(method, path)
        assert answer.status_code == status
        assert answer.headers.get("Allow") == allowed
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_files_that_cannot_be_removed_keep_no_others(
    plane: Plane, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than one round bears: it goes on behind them."""
    monkeypatch.setattr("weir_controlplane.files.service._SWEEP_ROWS", 2)
    monkeypatch.setattr("weir_controlplane.files.service._FAILURES", 3)
    ids = [(await client.files.create(file=b"x", purpose="batch")).id for _ in range(5)]
    *blocked, removable = sorted(ids)
    folder = plane.services.settings.data_dir / "files" / "files"
    for name in blocked:
        (folder / name).unlink()
        (folder / name).mkdir()
    async with plane.services.database.transaction() as session:
        await session.execute(update(File).values(status="deleted"))
    after = ""
    for _ in range(2):
        after = await sweep(plane.services, after=after)
    assert not (folder / removable).exists()
    for name in blocked:
        (folder / name).rmdir()
    await sweep(plane.services, after=after)
    async with plane.services.database.read() as session:
        assert set((await session.execute(select(File.status))).scalars()) == {"purged"}
