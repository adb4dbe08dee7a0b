"""Tenants and API keys (design.md §8, Security: Keys)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.controlplane.support import Plane, make_settings, running
from weir_controlplane.app import make_services
from weir_controlplane.keys.authenticator import CACHE_S, Authenticator
from weir_controlplane.keys.bootstrap import AdminKeyFileError, ensure_admin_key
from weir_controlplane.keys.secret import new_secret, parse_secret
from weir_controlplane.store.database import Database, clock_s
from weir_controlplane.store.models import ApiKey, Tenant

# What does not depend on the database need not run on both.
EMBEDDED = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
STANDING = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
async def plane(tmp_path: Path, database_url: str) -> AsyncIterator[Plane]:
    async with running(make_settings(tmp_path, database_url)) as plane:
        yield plane


async def test_the_first_admin_key_is_made_into_a_private_file(plane: Plane) -> None:
    path = plane.services.settings.admin_key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert parse_secret(path.read_text().strip()) is not None


async def test_a_restart_keeps_the_admin_key(tmp_path: Path, database_url: str) -> None:
    settings = make_settings(tmp_path, database_url)
    for _ in range(2):
        async with running(settings) as plane:
            assert (await plane.admin.get("/admin/v1/keys")).status_code == 200
            assert len((await plane.admin.get("/admin/v1/keys")).json()["data"]) == 1


async def test_an_admin_key_that_was_given_is_used(tmp_path: Path) -> None:
    given = new_secret()
    (tmp_path / "given.key").write_text(given.text)
    settings = make_settings(tmp_path, admin_key_file=tmp_path / "given.key")
    async with running(settings) as plane:
        assert (await plane.admin.get("/admin/v1/keys")).status_code == 200


@pytest.mark.postgres
@pytest.mark.parametrize("given", [True, False], ids=["given", "made"])
async def test_replicas_that_start_at_once_register_one_admin_key(
    tmp_path: Path, postgres_url: str, *, given: bool
) -> None:
    if given:
        (tmp_path / "admin.key").write_text(new_secret().text)
    replicas = [make_services(make_settings(tmp_path, postgres_url)) for _ in range(6)]
    async with contextlib.AsyncExitStack() as opened:
        for replica in replicas:
            await replica.database.open()
            opened.push_async_callback(replica.database.close)
            async with replica.database.read() as session:  # so that all are as fast to begin
                await session.execute(select(ApiKey.id))
        await asyncio.gather(*map(ensure_admin_key, replicas))
        async with replicas[0].database.read() as session:
            keys = (await session.execute(select(ApiKey.prefix))).scalars().all()
    secret = parse_secret((tmp_path / "admin.key").read_text().strip())
    assert secret is not None
    assert keys == [secret.prefix]


async def test_an_admin_key_file_without_key_is_named(tmp_path: Path, database: Database) -> None:
    (tmp_path / "admin.key").write_text("secret")
    services = make_services(make_settings(tmp_path, database.engine.url.render_as_string(False)))
    with pytest.raises(AdminKeyFileError, match=r"admin\.key holds no Weir key"):
        await ensure_admin_key(services)
    await services.database.close()


async def test_a_key_is_shown_once_and_stored_as_a_hash(plane: Plane) -> None:
    await plane.tenant_key("acme")
    made = (await plane.admin.post("/admin/v1/keys", json={"tenant": "acme"})).json()
    assert re.fullmatch(r"weir_[0-9a-f]{12}_[\w-]{43}", made["key"])  # 256 bits in base64
    listed = (await plane.admin.get("/admin/v1/keys")).json()["data"]
    shown = next(item for item in listed if item["id"] == made["id"])
    assert "key" not in shown
    assert shown["prefix"] == made["key"][:17]
    assert shown["tenant"] == "acme"
    async with plane.services.database.read() as session:
        row = (await session.execute(select(ApiKey).where(ApiKey.id == made["id"]))).scalar_one()
    stored = [str(getattr(row, column.key)) for column in ApiKey.__table__.columns]
    assert not any(made["key"][18:] in value for value in stored)


@STANDING
@pytest.mark.parametrize(
    "key", [None, "sk-123", "weir_000000000000_" + "A" * 43, "weir_é" + "A" * 50]
)
async def test_a_request_without_a_known_key_is_refused(standing: Plane, key: str | None) -> None:
    header = b"" if key is None else f"Bearer {key}".encode()
    answer = await standing.admin.get("/admin/v1/keys", headers=[(b"Authorization", header)])
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.json()["error"]["type"] == "authentication_error"


async def test_the_right_prefix_with_a_wrong_secret_is_refused(plane: Plane) -> None:
    key = await plane.tenant_key("acme")
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    async with plane.client(wrong) as client:
        assert (await client.get("/admin/v1/keys")).status_code == 401


@EMBEDDED
@pytest.mark.parametrize("scope", ["tenant", "agent"])
async def test_only_admin_keys_administrate(plane: Plane, scope: str) -> None:
    tenant_key = await plane.tenant_key("acme")
    key = tenant_key if scope == "tenant" else await plane.key(scope=scope)
    async with plane.client(key) as client:
        answer = await client.post("/admin/v1/tenants", json={"name": "x"})
    assert answer.status_code == 403
    assert f"yours has scope {scope}" in answer.json()["error"]["message"]


async def test_a_revoked_key_stops_working_and_the_new_one_goes_on(plane: Plane) -> None:
    """Rotation with overlap: two keys at once, then the old one is revoked."""
    old, new = await plane.key(scope="admin"), await plane.key(scope="admin")
    async with plane.client(old) as a, plane.client(new) as b:
        assert (await a.get("/admin/v1/keys")).status_code == 200
        listed = (await b.get("/admin/v1/keys")).json()["data"]
        key_id = next(item["id"] for item in listed if item["prefix"] == old[:17])
        for _ in range(2):  # safe to repeat
            assert (await b.delete(f"/admin/v1/keys/{key_id}")).json()["revoked"] is True
        assert (await a.get("/admin/v1/keys")).status_code == 401
        assert (await b.get("/admin/v1/keys")).status_code == 200


async def test_an_expired_key_stops_working(plane: Plane) -> None:
    key = await plane.key(scope="admin", expires_in_s=1e-6)
    async with plane.client(key) as client:
        assert (await client.get("/admin/v1/keys")).status_code == 401


@STANDING
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"scope": "tenant"}, "tenant"),
        ({"scope": "tenant", "tenant": "nobody"}, "tenant"),
        ({"scope": "root"}, "scope"),
        ({"scope": "admin", "agent_id": "a"}, "agent_id"),
        ({"scope": "admin", "tenant": "acme"}, "tenant"),
        ({"scope": "agent", "agent_id": "a", "tenant": "acme"}, "tenant"),
        ({"scope": "admin", "colour": "red"}, "colour"),
        ({"scope": "admin", "expires_in_s": math.inf}, "expires_in_s"),
        ({"scope": "admin", "expires_in_s": 1e300}, "expires_in_s"),
    ],
)
async def test_a_wrong_key_request_names_the_field(
    standing: Plane, body: dict[str, str | float], param: str
) -> None:
    content = json.dumps(body)  # which spells infinity out, and Python reads it back
    headers = {"Content-Type": "application/json"}
    answer = await standing.admin.post("/admin/v1/keys", content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@STANDING
@pytest.mark.parametrize("quota", ["max_batches", "max_queued_tokens"])
async def test_a_quota_beyond_all_counting_is_refused(standing: Plane, quota: str) -> None:
    answer = await standing.admin.post("/admin/v1/tenants", json={"name": "huge", quota: 10**30})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, quota)


async def test_a_tenants_name_is_taken_once(plane: Plane) -> None:
    await plane.tenant_key("acme")
    answer = await plane.admin.post("/admin/v1/tenants", json={"name": "acme"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "name_taken"
    names = [item["name"] for item in (await plane.admin.get("/admin/v1/tenants")).json()["data"]]
    assert names == ["acme"]


async def test_revoking_an_unknown_key_is_not_found(plane: Plane) -> None:
    assert (await plane.admin.delete("/admin/v1/keys/key_0")).status_code == 404


@pytest.mark.parametrize("scope", ["tenant", "agent"])
async def test_no_key_is_remembered_for_longer_than_it_lasts(
    database: Database, scope: str
) -> None:
    secret, clock = new_secret(), [0.0]
    keys = Authenticator(clock_s=lambda: clock[0])
    async with database.transaction() as session:
        session.add(
            ApiKey(
                id="k", scope=scope, name="n", created_at=0.0, prefix=secret.prefix,
                hash=secret.hash, expires_at=await clock_s(session) + 3600.0,
            )
        )  # fmt: skip
    found = await keys.principal(database, secret)
    assert found is not None
    async with database.transaction() as session:
        (await session.execute(select(ApiKey))).scalar_one().expires_at = (
            await clock_s(session) + 0.5
        )
    keys.forget()
    if await keys.principal(database, secret) is not None:  # else the machine stood still
        async with database.transaction() as session:
            (await session.execute(select(ApiKey))).scalar_one().expires_at = 1.0
        clock[0] += 0.6
        assert await keys.principal(database, secret) is None


async def test_a_good_key_is_remembered_for_seconds_only(database: Database) -> None:
    """Another replica's revocation is seen within `CACHE_S`."""
    secret, clock = new_secret(), [0.0]
    keys = Authenticator(clock_s=lambda: clock[0])
    assert await keys.principal(database, secret) is None
    async with database.transaction() as session:
        session.add(Tenant(id="t", name="t", created_at=0.0))
        await session.flush()
        session.add(
            ApiKey(
                id="k", tenant_id="t", scope="tenant", name="n", created_at=0.0,
                prefix=secret.prefix, hash=secret.hash,
            )
        )  # fmt: skip
    found = await keys.principal(database, secret)
    assert found is not None
    assert found.tenant_id == "t"
    async with database.transaction() as session:
        (await session.execute(select(ApiKey))).scalar_one().revoked_at = 1.0
    clock[0] = CACHE_S - 0.1
    assert await keys.principal(database, secret) == found
    clock[0] = CACHE_S + 0.1
    assert await keys.principal(database, secret) is None
