"""A call to the control plane that fails: whose conditions tell of it, and when it is repeated."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from kubernetes.aio.client import Configuration

from tests.operator.planning.worlds import batchjob, condition, llmservice, message, observe_job
from tests.support.serving import ASGIApp
from weir_operator.assembly import Parts, assemble
from weir_operator.control_plane.client import ControlPlaneClient, ControlPlaneError, HeardJob
from weir_operator.control_plane.reports import ReportBook
from weir_operator.planning.batchjob import plan_batchjob
from weir_operator.planning.kinds import BATCH_JOB, LLM_SERVICE
from weir_operator.planning.llmservice import plan_llmservice
from weir_operator.planning.observed import BatchReport
from weir_operator.planning.types import ControlPlaneRequest, ObjectKey, Plan, PutBatchJob
from weir_operator.reconcile.requests import Requests
from weir_operator.settings import OperatorSettings

Serve = Callable[[ASGIApp], AbstractAsyncContextManager[str]]
Answers = Mapping[tuple[str, str], tuple[int, object]]
EMPTY: dict[str, Any] = {"data": [], "has_more": False, "last_uid": None}
JOB = "/internal/v1/batchjobs/job-1"
SERVICE = "/internal/v1/services/team/chat"
DOWN: dict[str, Any] = {
    "error": {"message": "internal error; the log has the details", "code": None}
}


def control_plane(answers: Answers, seen: list[tuple[str, str]]) -> ASGIApp:
    """One that knows nothing of anybody, and answers some calls as given."""

    async def app(
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        await receive()
        place = (scope["method"], scope["path"])
        seen.append(place)
        status, body = answers.get(place, (200, EMPTY))
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    return app


@asynccontextmanager
async def operator_of(url: str) -> AsyncIterator[Parts]:
    """The parts of an operator, none running; it knows an LLMService and a BatchJob of it."""
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:9"  # nobody: no test asks it anything
    parts = assemble(OperatorSettings(control_plane_url=url), configuration)
    try:
        for kind, item in ((LLM_SERVICE, llmservice()), (BATCH_JOB, batchjob())):
            item["metadata"]["resourceVersion"] = "1"
            parts.store.seen(kind, item)
        yield parts
    finally:
        await parts.http.aclose()
        for client in parts.clients:
            await client.close()  # type: ignore[no-untyped-call]


def key_of(kind: str) -> ObjectKey:
    return ObjectKey(kind=kind, namespace="team", name="chat" if kind == "LLMService" else "night")


async def plan_of(parts: Parts, kind: str) -> Plan:
    if kind == "LLMService":
        service = parts.observer.llmservice(key_of(kind))
        assert service is not None
        return plan_llmservice(service)
    job = await parts.observer.batchjob(key_of(kind))
    assert job is not None
    return plan_batchjob(job)


async def ask_all(parts: Parts, kind: str) -> list[float | None]:
    """Asks what the object's plan asks; when to look again."""
    plan = await plan_of(parts, kind)
    return [await parts.requests.ask(key_of(kind), request) for request in plan.requests]


async def accepted(parts: Parts) -> tuple[tuple[str, str], str]:
    plan = await plan_of(parts, "BatchJob")
    return condition(plan.status, "Accepted"), message(plan.status, "Accepted")


async def registered(parts: Parts) -> tuple[tuple[str, str], str]:
    plan = await plan_of(parts, "LLMService")
    return condition(plan.status, "Registered"), message(plan.status, "Registered")


async def test_a_call_that_fails_says_nothing_of_other_objects(serve_app: Serve) -> None:
    seen: list[tuple[str, str]] = []
    async with (
        serve_app(control_plane({("PUT", JOB): (500, DOWN)}, seen)) as url,
        operator_of(url) as parts,
    ):
        await parts.progress.look()
        before = await registered(parts)
        assert before[0] == ("False", "Registering")
        await ask_all(parts, "BatchJob")
        assert await registered(parts) == before
        assert await accepted(parts) == (
            ("Unknown", "ControlPlaneUnreachable"),
            f"{DOWN['error']['message']}; asked again",
        )
        asked = seen.count(("PUT", JOB))
        [again_s] = await ask_all(parts, "BatchJob")
        assert seen.count(("PUT", JOB)) == asked  # not at once
        assert again_s is not None
        assert 0 < again_s <= 10


async def test_a_registration_that_fails_is_said_of_its_service_alone(serve_app: Serve) -> None:
    seen: list[tuple[str, str]] = []
    async with (
        serve_app(control_plane({("PUT", SERVICE): (503, DOWN)}, seen)) as url,
        operator_of(url) as parts,
    ):
        await parts.progress.look()
        await ask_all(parts, "LLMService")
        found, said = await registered(parts)
        assert found == ("Unknown", "ControlPlaneUnreachable")
        assert DOWN["error"]["message"] in said
        assert (await accepted(parts))[0] == ("False", "Submitting")


async def test_calls_without_an_answer_are_not_made_by_all_workers_at_once(
    serve_app: Serve,
) -> None:
    """A file store that hangs holds each call for as long as the operator waits."""
    seen: list[tuple[str, str]] = []
    async with serve_app(control_plane({}, seen)) as url, operator_of(url) as parts:
        await parts.progress.look()
        plan = await plan_of(parts, "BatchJob")
        parts.http.base_url = "http://127.0.0.1:9"
        await ask_all(parts, "BatchJob")
        assert (await accepted(parts))[0] == ("Unknown", "ControlPlaneUnreachable")
        parts.http.base_url = url
        seen.clear()
        [request] = plan.requests
        other = ObjectKey(kind="BatchJob", namespace="ads", name="other")
        assert isinstance(request, PutBatchJob)
        waits_s = await parts.requests.ask(other, replace(request, uid="u2"))
        assert seen == []
        assert waits_s is not None
        assert 0 < waits_s <= 5
        await ask_all(parts, "LLMService")
        assert seen == [("PUT", SERVICE)]


async def test_a_refused_batchjob_is_told_with_the_names_of_its_spec(serve_app: Serve) -> None:
    body = {"error": {"message": "completion_window: must be 24h", "code": "invalid_value"}}
    async with (
        serve_app(control_plane({("PUT", JOB): (400, body)}, [])) as url,
        operator_of(url) as parts,
    ):
        await parts.progress.look()
        await ask_all(parts, "BatchJob")
        found, said = await accepted(parts)
        assert found[0] == "False"
        assert "spec.completionWindow: must be 24h" in said


class Wishes:
    """What is asked of a control plane that does it all, and whose answers may be lost."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.puts = 0
        self.lost = False
        self.held: PutBatchJob | None = None
        self.reports = ReportBook(lambda _: None, on_reached=lambda: None, clock=lambda: self.now_s)
        client = cast("ControlPlaneClient", self)
        self.requests = Requests(client, self.reports, clock=lambda: self.now_s)

    def heard(self) -> HeardJob:
        """What it says of the BatchJob."""
        assert self.held is not None
        report = BatchReport(
            uid="job-1", batch_id=None, status="suspended", suspended=self.held.suspended
        )
        return HeardJob(uid="job-1", namespace="team", name="night", report=report)

    async def perform(self, request: ControlPlaneRequest) -> HeardJob:
        """Takes a PUT over."""
        assert isinstance(request, PutBatchJob)
        self.held = request
        self.puts += 1
        if self.lost:
            raise ControlPlaneError("PutBatchJob: ReadTimeout")
        return self.heard()

    async def wish(self, **spec: object) -> None:
        """The BatchJob is edited, and reconciled for a minute."""
        for _ in range(12):
            known = self.reports.job("job-1")
            report = None if known is None else known.report
            observed = observe_job(batchjob(**spec), report=report)
            for request in plan_batchjob(observed).requests:
                await self.requests.ask(key_of("BatchJob"), request)
            self.now_s += 5
            self.reports.heard_all([self.heard()], [], asked_at_s=self.now_s)


async def test_a_wish_that_is_taken_back_holds_though_an_answer_between_was_lost() -> None:
    world = Wishes()
    for now, then in (
        ({"suspend": True}, {"suspend": False}),
        ({"suspend": True, "priority": 1}, {"suspend": True, "priority": 2}),
    ):
        await world.wish(**now)
        puts = world.puts
        world.lost = True
        [changed] = plan_batchjob(
            observe_job(batchjob(**then), report=world.heard().report)
        ).requests
        await world.requests.ask(key_of("BatchJob"), changed)
        assert world.held == changed
        world.lost = False
        await world.wish(**now)
        assert world.held is not None
        assert world.held.suspended == now["suspend"]
        assert world.held.priority == now.get("priority", 0)
        assert world.puts == puts + 2  # and is not asked all the time


async def test_of_a_job_that_the_control_plane_has_no_lines_are_kept() -> None:
    """Each may be a ConfigMap of 1 MiB, and suspended for long."""
    world = Wishes()
    await world.wish(suspend=True)
    assert world.puts == 1
    world.held = None
    gc.collect()
    assert [found for found in gc.get_objects() if type(found) is PutBatchJob] == []
