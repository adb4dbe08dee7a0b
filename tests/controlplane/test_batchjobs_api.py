"""BatchJobs through the operator's calls: made once, suspended, resumed, cancelled, forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from openai.types import Batch as ClientBatch
from sqlalchemy import event, update

from tests.controlplane.agent_sim import BIG_ROOM
from tests.controlplane.jobs import Lab, input_lines, lab
from tests.controlplane.support import Plane, eventually, make_settings, running
from weir_controlplane.files.service import sweep
from weir_controlplane.store.models import File

Json = dict[str, Any]


class Operator:
    """The operator's side of one BatchJob after another."""

    def __init__(self, lab_: Lab) -> None:
        self.lab = lab_
        self.http = lab_.plane.admin

    async def put(self, uid: str = "uid-1", *, lines: int = 20, **given: object) -> Json:
        response = await self.try_put(uid, lines=lines, **given)
        assert response.status_code == 200, response.text
        view: Json = response.json()
        return view

    async def try_put(
        self, uid: str = "uid-1", *, lines: int = 20, **given: object
    ) -> httpx.Response:
        body: Json = {
            "namespace": "team-a",
            "name": uid.replace("uid", "job"),
            "input": {"inline": input_lines(lines).decode()},
        }
        return await self.http.put(f"/internal/v1/batchjobs/{uid}", json={**body, **given})

    async def get(self, uid: str = "uid-1") -> Json:
        response = await self.http.get(f"/internal/v1/batchjobs/{uid}")
        assert response.status_code == 200, response.text
        view: Json = response.json()
        return view

    async def until(self, status: str, uid: str = "uid-1") -> Json:
        view: Json = {}

        async def reached() -> bool:
            nonlocal view
            view = await self.get(uid)
            return bool(view["status"] == status)

        await eventually(reached)
        return view


@contextlib.asynccontextmanager
async def operator(
    tmp_path: Path, database_url: str | None = None, **given: object
) -> AsyncIterator[Operator]:
    async with running(make_settings(tmp_path, database_url, **given)) as plane, lab(plane) as it:
        bound = await plane.admin.put("/admin/v1/namespaces/team-a", json={"batchjobs": "acme"})
        assert bound.status_code == 200, bound.text
        yield Operator(it)


async def works(op: Operator, uid: str, status: str = "completed", **agent: Any) -> Json:  # noqa: ANN401
    """Lets a pod work until the job has this status."""
    pod = op.lab.agent(**agent)
    async with asyncio.timeout(240):
        while (view := await op.get(uid))["status"] != status:
            await pod.work()
            await asyncio.sleep(0.02)
    return view


async def answered(op: Operator, **given: Any) -> ClientBatch:  # noqa: ANN401
    """The batch of a new job, once a pod has answered it; its output may not be delivered yet."""
    batch_id = (await op.put(**given))["batch_id"]
    pod = op.lab.agent()
    while (batch := await op.lab.openai.batches.retrieve(batch_id)).status != "completed":
        await pod.work()
    return batch


async def test_a_batchjob_is_the_same_object_as_its_batch(
    tmp_path: Path, database_url: str
) -> None:
    async with operator(tmp_path, database_url) as op:
        view = await op.put(lines=20, metadata={"team": "search"})
        assert view["batch_id"] is not None
        assert view["input_matches"] is True
        done = await works(op, "uid-1")
        batch = await op.lab.openai.batches.retrieve(view["batch_id"])
        assert batch.status == "completed"
        assert batch.metadata == {"team": "search"}
        assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
        assert done["output_file_id"] == batch.output_file_id
        await op.lab.assert_whole(batch, 20)


async def test_the_first_accepted_input_wins(tmp_path: Path, database_url: str) -> None:
    async with operator(tmp_path, database_url) as op:
        first = await op.put(lines=5)
        views = await asyncio.gather(*(op.put(lines=5 + number % 2) for number in range(10)))
        assert {view["batch_id"] for view in views} == {first["batch_id"]}
        assert [view["input_matches"] for view in views] == [n % 2 == 0 for n in range(10)]
        assert len((await op.lab.openai.batches.list()).data) == 1


async def test_calls_at_once_make_one_batch(tmp_path: Path, database_url: str) -> None:
    async with operator(tmp_path, database_url) as op:
        await asyncio.gather(*(op.put(lines=5) for _ in range(10)))
        await op.until("in_progress")
        batches = (await op.lab.openai.batches.list()).data
        assert [batch.id for batch in batches] == [(await op.get())["batch_id"]]


async def test_a_job_suspended_from_birth_creates_nothing(
    tmp_path: Path, database_url: str
) -> None:
    async with operator(tmp_path, database_url) as op:
        for _ in range(2):
            view = await op.put(suspended=True)
            assert (view["status"], view["batch_id"], view["suspended"]) == (
                "suspended",
                None,
                True,
            )
        await asyncio.sleep(0.3)  # several looks of the workers
        assert (await op.lab.openai.batches.list()).data == []
        assert (await op.lab.openai.files.list()).data == []
        assert (await op.put(suspended=False))["batch_id"] is not None
        assert (await works(op, "uid-1"))["request_counts"]["completed"] == 20


async def test_suspending_a_live_batch_stops_dispatch_and_keeps_what_is_done(
    tmp_path: Path, database_url: str
) -> None:
    async with operator(tmp_path, database_url, chunk_lines=5) as op:
        await op.put(lines=20)
        await op.until("in_progress")
        pod = op.lab.agent()
        await pod.ready()
        small = {**BIG_ROOM, "lines": 5}
        await op.lab.syncs_until(pod, lambda: bool(pod.held), room=small)
        lease = next(iter(pod.held.values()))

        view = await op.put(lines=20, suspended=True)
        assert (view["status"], view["suspended"]) == ("in_progress", True)
        await op.lab.syncs_until(pod, lambda: bool(pod.last["cancel"]))
        assert pod.last["cancel"] == [{"chunk_id": lease["chunk_id"], "reason": "suspended"}]
        first = [item["line"] for item in await pod.lines(lease)][:2]
        assert await pod.finish(lease, only=first) == "accepted"
        for _ in range(20):  # nothing more is handed out
            await pod.sync()
            assert pod.held == {}
            await asyncio.sleep(0.02)
        view = await op.get()
        assert view["request_counts"]["completed"] == 2
        assert view["eta_at"] is None
        told = await op.lab.openai.batches.retrieve(view["batch_id"])
        assert told.model_extra == {"waiting_reason": "Suspended"}

        assert (await op.put(lines=20, suspended=False))["suspended"] is False
        done = await works(op, "uid-1", agent_id="pod-1")
        assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
        batch = await op.lab.openai.batches.retrieve(done["batch_id"])
        await op.lab.assert_whole(batch, 20)


async def test_cancel_keeps_what_is_committed_and_may_be_repeated(
    tmp_path: Path, database_url: str
) -> None:
    async with operator(tmp_path, database_url) as op:
        await op.put()
        await op.until("in_progress")
        for _ in range(2):
            cancelled = await op.http.post("/internal/v1/batchjobs/uid-1/cancel")
            assert cancelled.status_code == 200
        assert (await op.until("cancelled"))["ended_at"] is not None
        again = await op.http.post("/internal/v1/batchjobs/uid-1/cancel")
        assert again.json()["status"] == "cancelled"
        assert (await op.put())["status"] == "cancelled"  # a PUT does not bring it back


async def test_a_suspended_job_can_be_cancelled_and_forgotten(
    tmp_path: Path, database_url: str
) -> None:
    async with operator(tmp_path, database_url) as op:
        await op.put(suspended=True)
        refused = await op.http.delete("/internal/v1/batchjobs/uid-1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_ended")
        assert (await op.http.post("/internal/v1/batchjobs/uid-1/cancel")).json()[
            "status"
        ] == "cancelled"
        for _ in range(2):
            assert (await op.http.delete("/internal/v1/batchjobs/uid-1")).status_code == 204
        gone = await op.http.get("/internal/v1/batchjobs/uid-1")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "batch_not_found")


async def test_a_job_that_is_not_known_any_more_is_never_made_again(tmp_path: Path) -> None:
    async with operator(tmp_path) as op:
        response = await op.try_put(batch_id="batch_gone")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "batch_not_found")
        assert (await op.lab.openai.batches.list()).data == []
        for call in (op.http.get, lambda path: op.http.post(f"{path}/cancel")):
            assert (await call("/internal/v1/batchjobs/nobody")).status_code == 404


async def test_a_job_that_was_forgotten_has_the_batch_that_it_had(
    tmp_path: Path, database_url: str
) -> None:
    """One batch a BatchJob, whatever happens; its key cannot be taken by others."""
    async with operator(tmp_path, database_url) as op:
        first = await op.put()
        await works(op, "uid-1")
        assert (await op.http.delete("/internal/v1/batchjobs/uid-1")).status_code == 204
        again = await op.put()
        assert (again["batch_id"], again["status"]) == (first["batch_id"], "completed")
        client = op.lab.openai
        file = await client.files.create(file=("in.jsonl", input_lines(1)), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="Idempotency-Key"):
            await client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                extra_headers={"Idempotency-Key": "weir.dev/batchjob/uid-2"},
            )
        assert (await op.put("uid-2"))["batch_id"] is not None


async def test_one_call_shows_every_job(tmp_path: Path, database_url: str) -> None:
    async with operator(tmp_path, database_url) as op:
        uids = [f"uid-{number}" for number in range(5)]
        for uid in uids:
            await op.put(uid, lines=2, suspended=uid == "uid-3")
        path = "/internal/v1/batchjobs"
        first = (await op.http.get(path, params={"limit": 3})).json()
        rest = (await op.http.get(path, params={"after": first["last_uid"]})).json()
        assert [view["uid"] for view in first["data"] + rest["data"]] == uids
        assert (first["has_more"], rest["has_more"]) == (True, False)
        assert [view["name"] for view in rest["data"]] == ["job-3", "job-4"]
        assert rest["data"][0]["status"] == "suspended"


async def test_looks_at_all_jobs_read_no_input(tmp_path: Path, database_url: str) -> None:
    """The operator looks every 5 s; a thousand that wait may hold a GiB of lines."""
    read: list[str] = []

    def note(*given: object) -> None:
        read.extend(text for text in [str(given[2])] if "FROM batchjobs" in text)

    async with operator(tmp_path, database_url) as op:
        await op.put(suspended=True)
        engine = op.lab.plane.services.database.engine.sync_engine
        event.listen(engine, "before_cursor_execute", note)
        assert len((await op.http.get("/internal/v1/batchjobs")).json()["data"]) == 1
        event.remove(engine, "before_cursor_execute", note)
    assert read
    assert not any("input_inline" in text for text in read)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def refusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Operator]:
    """An operator whose requests are all refused."""
    async with operator(tmp_path_factory.mktemp("refusing")) as op:
        yield op


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ({"namespace": "Team"}, 400, "namespace"),
        ({"name": ""}, 400, "name"),
        ({"priority": 2000}, 400, "priority"),
        ({"model": "m\0"}, 400, "model"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"input": {}}, 400, "input"),
        ({"input": {"inline": "x", "uri": "s3://a/b"}}, 400, "input"),
        ({"input": {"inline": "x" * (1 << 21)}}, 400, "input"),
        ({"input": {"uri": "s3://bucket/in.jsonl"}}, 400, "input.uri"),
        ({"output_uri": "file:///etc"}, 400, "output_uri"),
        ({"metadata": {"": "x"}}, 400, "metadata"),
        ({"namespace": "team-b"}, 403, "namespace"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_input_names_the_field(
    refusing: Operator, given: Json, status: int, param: str
) -> None:
    response = await refusing.try_put("uid-bad", **given)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error
    assert (await refusing.http.get("/internal/v1/batchjobs/uid-bad")).status_code == 404


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Operator]:
    async with operator(tmp_path) as op:
        yield op


async def test_a_job_is_suspended_whose_window_is_not_allowed_any_more(tmp_path: Path) -> None:
    async with operator(tmp_path) as op:
        made = await op.put(completion_window="7d")
    lowered = make_settings(tmp_path, max_completion_window_s=2 * 86_400)
    async with running(lowered) as plane:

        async def put(name: str) -> httpx.Response:
            body = {
                "namespace": "team-a",
                "name": f"job-{name}",
                "input": {"inline": input_lines(20).decode()},
                "completion_window": "7d",
                "suspended": True,
            }
            return await plane.admin.put(f"/internal/v1/batchjobs/uid-{name}", json=body)

        known = await put("1")
        assert known.status_code == 200, known.text
        assert (known.json()["suspended"], known.json()["batch_id"]) == (True, made["batch_id"])
        new = await put("2")
        assert (new.status_code, new.json()["error"]["param"]) == (400, "completion_window")


async def test_a_job_gets_the_window_that_it_was_accepted_with(tmp_path: Path) -> None:
    """Its batch is made when it is resumed, and its window is not allowed any more."""
    async with operator(tmp_path) as op:
        assert (await op.put(completion_window="7d", suspended=True))["batch_id"] is None
    async with running(make_settings(tmp_path, max_completion_window_s=2 * 86_400)) as plane:
        again = Operator(replace(op.lab, plane=plane))
        resumed = await again.put(completion_window="7d", suspended=False)
        assert resumed["batch_id"] is not None, resumed["waiting_reason"]
        assert resumed["expires_at"] - resumed["created_at"] == pytest.approx(7 * 86_400)


async def test_a_uid_belongs_to_one_object(shared: Operator) -> None:
    await shared.put()
    response = await shared.try_put(name="other")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "uid_in_use")


async def test_content_errors_are_the_jobs_own(shared: Operator) -> None:
    await shared.put(input={"inline": "not json\n"})
    view = await shared.until("failed")
    assert view["errors"][0]["code"] == "invalid_json_line"
    assert view["errors"][0]["line"] == 1


async def test_every_line_must_name_the_jobs_model(shared: Operator) -> None:
    await shared.put(model="other")
    view = await shared.until("failed")
    assert {error["code"] for error in view["errors"]} == {"model_mismatch"}


async def test_a_job_waits_for_the_tenants_quota(tmp_path: Path) -> None:
    async with operator(tmp_path, tenant_max_batches=1) as op:
        await op.put("uid-1")
        waiting = await op.put("uid-2")
        assert (waiting["status"], waiting["waiting_reason"]) == ("pending", "QuotaExceeded")
        await works(op, "uid-1")
        await works(op, "uid-2", agent_id="pod-1")


async def test_the_copy_of_an_input_expires_once_nobody_needs_it(tmp_path: Path) -> None:
    """Nobody deletes it: who made the BatchJob may have no key."""
    async with operator(tmp_path, tenant_max_batches=1, sweep_s=3600) as op:
        services = op.lab.plane.services

        async def swept() -> list[str]:
            async with services.database.transaction() as session:
                copies = update(File).where(File.purpose == "batch", File.expires_at.is_not(None))
                await session.execute(copies.values(expires_at=1.0))
            await sweep(services)
            return await services.storage.keys("files")

        await op.put("uid-1")
        await op.put("uid-2")  # waits for the quota
        assert len(await swept()) == 2
        await works(op, "uid-1")
        assert len(await swept()) == 1
        await works(op, "uid-2", agent_id="pod-1")
        assert await swept() == []


async def test_only_the_operator_and_administrators_may_call(shared: Operator) -> None:
    plane: Plane = shared.lab.plane
    for key in (await plane.key(tenant="acme"), await plane.key(scope="agent")):
        async with plane.client(key) as client:
            response = await client.get("/internal/v1/batchjobs")
            assert response.status_code == 403
    async with plane.client(None) as client:
        assert (await client.get("/internal/v1/batchjobs")).status_code == 401


async def test_a_tenant_sees_only_its_own_namespaces_batches(shared: Operator) -> None:
    plane = shared.lab.plane
    view = await shared.put()
    async with plane.client(await plane.tenant_key("rival")) as rival:
        response = await rival.get(f"/v1/batches/{view['batch_id']}")
        assert response.status_code == 404
        assert (await rival.get("/v1/batches")).json()["data"] == []
