"""URIs that users name: which are allowed, and how BatchJobs read and write them."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response
from sqlalchemy import select, text
from structlog.testing import capture_logs

from tests.controlplane.jobs import input_lines
from tests.controlplane.test_batchjobs_api import Operator, operator, works
from tests.support.serving import serve
from weir_controlplane.batchjobs import intake
from weir_controlplane.errors import StorageError
from weir_controlplane.files.storage import Storage
from weir_controlplane.links.signer import LinkSigner
from weir_controlplane.store.models import Batch, File, Tenant
from weir_controlplane.uris import transfer
from weir_controlplane.uris.rules import UriRefusedError, check_within, parse_uri
from weir_controlplane.uris.transfer import UriAccess, UriUnreadableError, check_public

Json = dict[str, Any]


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a/../b",
        "s3://bucket/a/%2e%2e/b",
        "s3://bucket/a/%2E./b",
        "s3://bucket/a/%252e%252e/b",
        "s3://bucket/a/./b",
        "s3://bucket/a//b",
        "s3://bucket/a%2fb",
        "s3://bucket/a%5cb",
        "s3://bucket/a?versionId=1",
        "s3://bucket/a%3fversionId=1",
        "s3://bucket/a#b",
        "s3://bucket/*",
        "s3://bucket/a%00b",
        "s3://bucket/a b",
        "s3://bucket/a%ff",
        "s3://bucket/a%3A%3Ab",
        "s3://bucket/a%3a:b",
        "s3://key:secret@bucket/a",
        "https://user@host/a",
        "https://host:80:90/a",
        "https://host:99999/a",
        "https://host:0/a",
        "https://[::1]/a",
        "zip://x::s3://bucket/a",
        "simplecache::s3://bucket/a",
        "ftp://host/a",
        "memory://a",
        "/etc/passwd",
        "file://host/etc",
        "s3:///a",
        "https:///a",
        "",
    ],
)
def test_uris_that_could_lead_elsewhere_are_refused(text: str) -> None:
    with pytest.raises(UriRefusedError):
        parse_uri(text)


@pytest.mark.parametrize(
    ("uri", "prefix", "allowed"),
    [
        ("s3://bucket/team/in.jsonl", "s3://bucket/team", True),
        ("s3://bucket/team/in.jsonl", "s3://bucket/team/", True),
        ("s3://bucket/team", "s3://bucket/team", True),
        ("s3://bucket/%74eam/x", "s3://bucket/team", True),
        ("s3://bucket/x", "s3://bucket", True),
        ("s3://bucket/team2/x", "s3://bucket/team", False),
        ("s3://bucket/Team/x", "s3://bucket/team", False),
        ("s3://bucket2/team/x", "s3://bucket/team", False),
        ("https://bucket/team/x", "s3://bucket/team", False),
        ("https://HOST/a", "https://host", True),
        ("https://host:444/a", "https://host", False),
        ("https://host.evil/a", "https://host", False),
        ("file:///data/team/x", "file:///data/team", True),
        ("file:///data", "file:///data/team", False),
    ],
)
def test_prefixes_match_whole_decoded_segments(uri: str, prefix: str, *, allowed: bool) -> None:
    if allowed:
        assert check_within(parse_uri(uri), [parse_uri(prefix)]) == parse_uri(prefix)
        return
    with pytest.raises(UriRefusedError):
        check_within(parse_uri(uri), [parse_uri(prefix)])


@pytest.mark.parametrize(
    "path", ["", "/a/b", "/my%20data", "/a%2541", "/d=1/ü~", "/%C3%BC", "/%7F"]
)
def test_what_is_stored_of_a_uri_is_the_same_uri(path: str) -> None:
    uri = parse_uri(f"s3://Bucket{path}")
    assert parse_uri(uri.canonical) == uri


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "0.1.2.3", "100.64.0.1",
        "::1", "fd00::1", "fe80::1", "::ffff:10.0.0.1", "224.0.0.1",
        # IPv4 in IPv6: by a translator, by a tunnel, and as nobody writes it any more
        "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::7f00:1", "fec0::1",
    ],
)  # fmt: skip
def test_private_addresses_are_refused(address: str) -> None:
    with pytest.raises(UriRefusedError, match="private"):
        check_public("host", ["93.184.216.34", address])


def test_public_addresses_are_taken() -> None:
    assert not is_refused("93.184.216.34", "2606:2800:220:1::1")
    assert not is_refused("64:ff9b::5db8:d822")  # of every host, where a network has IPv6 alone


def is_refused(*addresses: str) -> bool:
    try:
        check_public("host", addresses)
    except UriRefusedError:
        return True
    return False


async def read(access: UriAccess, uri: str, prefix: str) -> bytes:
    blocks = access.read(parse_uri(uri), parse_uri(prefix))
    return b"".join([block async for block in blocks])


def web() -> FastAPI:
    app = FastAPI()

    @app.get("/in.jsonl")
    async def found() -> Response:
        return Response(input_lines(4), media_type="application/octet-stream")

    @app.get("/moved")
    async def moved() -> Response:
        return Response(status_code=302, headers={"location": "/in.jsonl"})

    return app


async def test_http_reaches_named_hosts_only_and_follows_no_redirect() -> None:
    async with serve(web()) as url:
        named = UriAccess(private_hosts=("127.0.0.1",))
        assert await read(named, f"{url}/in.jsonl", url) == input_lines(4)
        with pytest.raises(UriRefusedError, match="private"):
            await read(UriAccess(), f"{url}/in.jsonl", url)
        with pytest.raises(UriUnreadableError, match="302"):
            await read(named, f"{url}/moved", url)
        with pytest.raises(UriUnreadableError, match="404"):
            await read(named, f"{url}/nothing", url)


@pytest.mark.parametrize("host", ["data..example.com", "d" * 64 + ".example.com"])
async def test_a_host_that_no_name_can_be_is_told(host: str) -> None:
    """It was an error inside the control plane, which shows nobody what to mend."""
    with pytest.raises(StorageError, match=f"the host {host} cannot be resolved"):
        await read(UriAccess(), f"https://{host}/in.jsonl", f"https://{host}")


async def test_http_reads_its_authorities_once_and_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes up to a tenth of a second, in which no request would be answered."""
    readers = []

    def authorities(**_given: object) -> ssl.SSLContext:
        readers.append(threading.current_thread())
        return ssl.create_default_context()

    monkeypatch.setattr(httpx, "create_ssl_context", authorities)
    transfer.public_authorities.cache_clear()
    async with serve(web()) as url:
        for _ in range(2):
            await read(UriAccess(private_hosts=("127.0.0.1",)), f"{url}/in.jsonl", url)
    (reader,) = readers
    assert reader is not threading.current_thread()


async def test_a_symbolic_link_does_not_lead_out_of_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "in.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(UriRefusedError, match="symbolic link"):
        await read(UriAccess(), f"file://{tmp_path}/team/in.jsonl", f"file://{tmp_path}/team")


async def give(op: Operator, prefix: str, *, writable: bool = True) -> Json:
    body = {"tenant": "acme", "prefix": prefix, "writable": writable}
    response = await op.http.post("/admin/v1/uri-prefixes", json=body)
    assert response.status_code == 201, response.text
    given: Json = response.json()
    return given


async def test_a_job_reads_its_input_and_writes_its_output(
    tmp_path: Path, database_url: str
) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (share / "in.jsonl").write_bytes(input_lines(12))
    async with operator(tmp_path / "plane", database_url) as op:
        await give(op, f"file://{share}")
        view = await op.put(
            input={"uri": f"file://{share}/in.jsonl"}, output_uri=f"file://{share}/out/"
        )
        assert view["status"] in {"pending", "validating"}
        done = await works(op, "uid-1")
        assert done["delivery"] == {
            "state": "done",
            "output_uri": f"file://{share}/out/output.jsonl",
            "error_uri": None,
            "message": None,
        }
        assert sorted(item.name for item in (share / "out").iterdir()) == ["output.jsonl"]
        content = await op.lab.openai.files.content(done["output_file_id"])
        assert (share / "out" / "output.jsonl").read_bytes() == content.content
        assert len(content.text.splitlines()) == 12


async def test_a_job_on_s3(tmp_path: Path, s3_url: str) -> None:
    bucket = Storage(s3_url)
    async with bucket.writer("in.jsonl") as writer:
        await writer.write(input_lines(6))
    async with operator(tmp_path) as op:
        await give(op, s3_url)
        await op.put(input={"uri": f"{s3_url}/in.jsonl"}, output_uri=f"{s3_url}/out")
        done = await works(op, "uid-1")
        assert done["delivery"]["output_uri"] == f"{s3_url}/out/output.jsonl"
        content = await op.lab.openai.files.content(done["output_file_id"])
        assert await bucket.read("out/output.jsonl", 0, 1 << 20) == content.content


@pytest.mark.usefixtures("s3_url")
async def test_a_bucket_that_is_not_there_is_not_said_to_be_the_file_store() -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield input_lines(1)

    prefix = parse_uri("s3://bucket-of-nobody/out")
    with pytest.raises(
        StorageError, match="the place that the URI names has no such object, bucket"
    ):
        await UriAccess().write(prefix.child("output.jsonl"), prefix, lines())


async def test_a_folder_of_a_bucket_is_no_object(s3_url: str) -> None:
    """It read as an empty file: the job failed with an input that has no lines."""
    async with Storage(s3_url).writer("in/lines.jsonl") as writer:
        await writer.write(input_lines(4))
    for uri in (f"{s3_url}/in", "s3://weir"):
        with pytest.raises(UriUnreadableError, match="no such object"):
            await read(UriAccess(), uri, "s3://weir")


async def test_an_input_whose_end_was_not_heard_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.6: it was stored and committed, and the answer of the database was lost."""
    store, lost = intake._store, list[bool]()

    async def lose_once(*arguments: Any) -> None:  # noqa: ANN401
        await store(*arguments)
        if not lost:
            lost.append(True)
            raise ConnectionError("lost")

    monkeypatch.setattr(intake, "_store", lose_once)
    async with operator(tmp_path) as op:
        await op.put(lines=4)
        done = await works(op, "uid-1")
        assert lost
        async with op.lab.plane.client(None) as nobody:
            assert len((await nobody.get(done["output_link"])).text.splitlines()) == 4


async def test_prefixes_may_have_encoded_characters(tmp_path: Path, database_url: str) -> None:
    for name in ("my data", "other", "a%41", "aA"):
        (tmp_path / "share" / name).mkdir(parents=True)
        (tmp_path / "share" / name / "in.jsonl").write_bytes(input_lines(4))
    share = f"file://{tmp_path}/share"
    async with operator(tmp_path / "plane", database_url) as op:
        given = [await give(op, f"{share}/{name}") for name in ("my%20data", "other", "a%2541")]
        assert [item["prefix"] for item in given] == [
            f"{share}/{name}" for name in ("my%20data", "other", "a%2541")
        ]
        again = await give(op, f"{share}/%6Dy%20data/")
        assert again["id"] == given[0]["id"]
        for name in ("my%20data", "other", "a%2541"):
            uid = f"uid-{name.partition('%')[0]}"
            await op.put(
                uid,
                input={"uri": f"{share}/{name}/in.jsonl"},
                output_uri=f"{share}/{name}/out",
            )
            done = await works(op, uid, agent_id=f"pod-{uid}")
            assert done["delivery"]["state"] == "done"
        assert (tmp_path / "share" / "my data" / "out" / "output.jsonl").exists()
        refused = await op.try_put("uid-9", input={"uri": f"{share}/aA/in.jsonl"})
        assert refused.json()["error"]["code"] == "uri_not_allowed"


async def keep_decoded(op: Operator, prefix_id: str, prefix: str) -> None:
    """A prefix of tenant acme as an earlier release stores it."""
    async with op.lab.plane.services.database.transaction() as session:
        tenant = select(Tenant.id).where(Tenant.name == "acme")
        await session.execute(
            text(
                "INSERT INTO uri_prefixes (id, tenant_id, prefix, writable, created_at) "
                "VALUES (:id, :tenant_id, :prefix, TRUE, 1.0)"
            ),
            {
                "id": prefix_id,
                "tenant_id": (await session.execute(tenant)).scalar_one(),
                "prefix": prefix,
            },
        )


async def test_prefixes_of_an_earlier_release_allow_what_they_named(
    tmp_path: Path, database_url: str
) -> None:
    """It stored a%2541 as a%41 and took that for aA, which may be another tenant's."""
    for name in ("my data", "a%41", "aA"):
        (tmp_path / "share" / name).mkdir(parents=True)
        (tmp_path / "share" / name / "in.jsonl").write_bytes(input_lines(4))
    share = f"file://{tmp_path}/share"
    async with operator(tmp_path / "plane", database_url) as op:
        await keep_decoded(op, "prefix_1", f"{share}/a%41")
        await keep_decoded(op, "prefix_2", f"{share}/my data")
        refused = await op.try_put("uid-9", input={"uri": f"{share}/aA/in.jsonl"})
        assert refused.json()["error"]["code"] == "uri_not_allowed"
        for uid, name in (("uid-1", "a%2541"), ("uid-2", "my%20data")):
            await op.put(uid, input={"uri": f"{share}/{name}/in.jsonl"})
            assert (await works(op, uid, agent_id=f"pod-{uid}"))["status"] == "completed"
        listed = (await op.http.get("/admin/v1/uri-prefixes")).json()["data"]
        assert [item["prefix"] for item in listed] == [f"{share}/a%2541", f"{share}/my%20data"]
        assert (await give(op, f"{share}/a%2541"))["id"] == "prefix_1"
        refused = await op.try_put("uid-9", input={"uri": f"{share}/aA/in.jsonl"})
        assert refused.json()["error"]["code"] == "uri_not_allowed"


async def test_a_stored_prefix_that_is_no_uri_spoils_no_other(
    tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "in.jsonl").write_bytes(input_lines(4))
    async with operator(tmp_path / "plane", database_url) as op:
        await give(op, f"file://{tmp_path}/share")
        await keep_decoded(op, "prefix_0", "file:///my::data")
        with capture_logs() as logs:
            await op.put(input={"uri": f"file://{tmp_path}/share/in.jsonl"})
            await works(op, "uid-1")
        told = {item["prefix_id"] for item in logs if item["event"] == "uri_prefix_not_readable"}
        assert told == {"prefix_0"}
        removed = await op.http.delete("/admin/v1/uri-prefixes/prefix_0")
        assert removed.status_code == 204


async def test_an_input_that_is_not_there_ends_the_job(tmp_path: Path) -> None:
    async with operator(tmp_path) as op:
        await give(op, f"file://{tmp_path}/share")
        await op.put(input={"uri": f"file://{tmp_path}/share/in.jsonl"})
        view = await op.until("failed")
        assert view["errors"][0]["code"] == "input_unreadable"
        assert view["batch_id"] is None
        assert (await op.lab.openai.files.list()).data == []


async def test_an_input_that_is_too_large_ends_the_job(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (share / "in.jsonl").write_bytes(input_lines(100))
    async with operator(tmp_path / "plane", max_file_bytes=1000) as op:
        await give(op, f"file://{share}", writable=False)
        await op.put(input={"uri": f"file://{share}/in.jsonl"})
        view = await op.until("failed")
        assert view["errors"][0]["code"] == "input_too_large"


async def test_a_prefix_to_read_from_is_none_to_write_to(tmp_path: Path) -> None:
    async with operator(tmp_path) as op:
        await give(op, f"file://{tmp_path}/share", writable=False)
        response = await op.try_put(output_uri=f"file://{tmp_path}/share/out")
        assert response.json()["error"]["code"] == "uri_not_allowed"


async def test_an_output_that_cannot_be_written_leaves_the_files(tmp_path: Path) -> None:
    share = tmp_path / "share"
    async with operator(tmp_path / "plane") as op:
        prefix = await give(op, f"file://{share}")
        await op.put(lines=4, output_uri=f"file://{share}/out")
        await op.http.delete(f"/admin/v1/uri-prefixes/{prefix['id']}")
        done = await works(op, "uid-1")
        assert done["delivery"]["state"] == "failed"
        assert "prefix" in done["delivery"]["message"]
        assert done["output_link"] is not None


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prefix": "s3://b/../c"}, "prefix"),
        ({"prefix": "file:///"}, "prefix"),
        ({"prefix": "https://host", "writable": True}, "writable"),
        ({"tenant": "nobody"}, "tenant"),
    ],
)
async def test_bad_prefixes_name_the_field(tmp_path: Path, given: Json, param: str) -> None:
    async with operator(tmp_path) as op:
        body = {"tenant": "acme", "prefix": "s3://bucket/a", **given}
        response = await op.http.post("/admin/v1/uri-prefixes", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_link_needs_no_key_and_cannot_be_changed(tmp_path: Path, database_url: str) -> None:
    async with operator(tmp_path, database_url) as op:
        await op.put(lines=4)
        done = await works(op, "uid-1")
        link = done["output_link"]
        assert (await op.get())["output_link"] == link  # whoever writes it down writes it once
        async with op.lab.plane.client(None) as nobody:
            found = await nobody.get(link)
            assert found.status_code == 200
            assert len(found.text.splitlines()) == 4
            end = str(int(done["links_expire_at"]))
            other = done["output_file_id"][:-1] + "0"
            changed = [
                link.replace(f"expires={end}", f"expires={int(end) + 1}"),
                link.replace(done["output_file_id"], other if other not in link else other + "1"),
                link[:-1] + ("0" if link[-1] != "0" else "1"),
            ]
            answers = await asyncio.gather(*(nobody.get(url) for url in changed))
            assert [answer.status_code for answer in answers] == [404, 404, 404]
            async with op.lab.plane.services.database.transaction() as session:
                batch = await session.get(Batch, done["batch_id"])
                assert batch is not None
                file = await session.get(File, batch.output_file_id)
                assert file is not None
                file.status = "deleted"
            assert (await nobody.get(link)).status_code == 404


def test_a_link_lasts_between_half_and_all_of_its_life() -> None:
    signer = LinkSigner(life_s=1000, base_url="https://weir.example/")
    signer.use([b"new", b"old"])
    for now_s in (0.0, 499.0, 500.0, 12_345.6):
        link = signer.link("file-1", now_s)
        assert 500 <= link.expires_at - now_s <= 1000
        signature = link.url.rpartition("=")[2]
        seen: Json = {"expires_at": link.expires_at, "signature": signature}
        assert signer.allows("file-1", **seen, now_s=link.expires_at - 1)
        assert not signer.allows("file-1", **seen, now_s=link.expires_at)
        assert not signer.allows("file-2", **seen, now_s=now_s)
        assert link.url.startswith("https://weir.example/v1/results/file-1?expires=")


def test_links_of_an_older_key_still_hold() -> None:
    before, after = LinkSigner(life_s=1000), LinkSigner(life_s=1000)
    before.use([b"old"])
    after.use([b"new", b"old"])
    link = before.link("file-1", 0.0)
    signature = link.url.rpartition("=")[2]
    given: Json = {"expires_at": link.expires_at, "signature": signature, "now_s": 1.0}
    assert after.allows("file-1", **given)
    after.use([b"new"])
    assert not after.allows("file-1", **given)
