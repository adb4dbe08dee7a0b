"""What the control plane said, refused and forgot; and the calls themselves over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from tests.support.serving import ASGIApp
from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.store import ObjectStore
from weir_operator.control_plane.client import (
    ControlPlaneClient,
    ControlPlaneError,
    HeardJob,
    HeardService,
    TokenFile,
)
from weir_operator.control_plane.progress import Pace, Progress
from weir_operator.control_plane.reports import ASK_AGAIN_S, ReportBook
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.kinds import Kind
from weir_operator.planning.observed import (
    BatchReport,
    PodReport,
    Refusal,
    ServiceReport,
    SloReport,
)
from weir_operator.planning.types import CancelBatch, ForgetBatch, ObjectKey, RegisterPods

Serve = Callable[[ASGIApp], AbstractAsyncContextManager[str]]


def job(uid: str, *, status: str = "in_progress", completed: int = 0) -> HeardJob:
    report = BatchReport(uid=uid, batch_id="batch_1", status=status, completed_lines=completed)
    return HeardJob(uid=uid, namespace="team", name=f"job-{uid}", report=report)


def service(*, tokens: float = 0.0) -> HeardService:
    pod = PodReport(uid="p", name="chat-1", state="ready")
    report = ServiceReport(
        model="m", service_account="chat", pods=(pod,), offline_tokens_per_s=tokens
    )
    return HeardService(namespace="team", name="chat", report=report)


class Book:
    """A report book on a clock of its own, and what it enqueued since the last look."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.keys: list[ObjectKey] = []
        self.changes = 0
        self.book = ReportBook(self.keys.append, on_reached=self._changed, clock=lambda: self.now_s)

    def _changed(self) -> None:
        self.changes += 1

    def names(self) -> list[str]:
        found = [key.name for key in self.keys]
        self.keys.clear()
        return found


def test_nothing_counts_as_unknown_before_a_complete_answer() -> None:
    held = Book()
    book = held.book
    steps = (
        lambda: book.reach(answered=True),
        lambda: book.heard_all([], [], asked_at_s=0),
        lambda: book.reach(answered=False),
    )
    found = [(step(), book.reached)[1] for step in steps]
    assert found == [False, True, False]
    assert held.changes == 2  # each concerns every object


def test_a_list_asked_for_before_a_batch_was_made_does_not_lose_it() -> None:
    held = Book()
    held.book.heard_job(job("a"), asked_at_s=10)
    held.book.heard_all([], [], asked_at_s=9)
    assert held.book.job("a") is not None
    held.names()
    held.book.heard_all([], [], asked_at_s=11)
    assert held.book.job("a") is None
    assert held.names() == ["job-a"]


def test_an_older_answer_does_not_undo_a_newer_one() -> None:
    held = Book()
    held.book.heard_job(job("a", status="cancelled"), asked_at_s=10)
    held.book.heard_all([job("a")], [], asked_at_s=9)
    heard = held.book.job("a")
    assert heard is not None
    assert heard.report.status == "cancelled"


def test_how_long_no_objective_was_measured() -> None:
    held = Book()
    unit = SloReport(metric="tbt", statistic="p99", threshold_s=0.1, measured_s=0.05, attained=True)
    quiet, heard = replace(unit, measured_s=None, attained=None), service()
    for now_s, told, silence_s in ((1, quiet, None), (2, unit, 0.0), (62, quiet, 60.0)):
        held.now_s = now_s
        pod = replace(heard.report.pods[0], slo=(told,))
        measured = replace(heard, report=replace(heard.report, pods=(pod,)))
        held.book.heard_all([], [measured], asked_at_s=now_s)
        assert held.book.slo_silence_s("team", "chat") == silence_s
    held.book.heard_all([], [], asked_at_s=63)
    assert held.book.slo_silence_s("team", "chat") is None


def test_only_news_enqueues() -> None:
    held = Book()
    held.book.heard_all([job("a")], [service()], asked_at_s=1)
    assert sorted(held.names()) == ["chat", "job-a"]
    held.book.heard_all([job("a")], [service()], asked_at_s=2)
    assert held.names() == []
    held.book.heard_all([job("a", completed=1)], [service(tokens=5.0)], asked_at_s=3)
    assert sorted(held.names()) == ["chat", "job-a"]


def test_a_renewed_policy_alone_is_no_news() -> None:
    held = Book()
    first = service()
    held.book.heard_service(first, asked_at_s=1)
    held.names()
    later = datetime(2026, 1, 1, tzinfo=UTC)
    pods = tuple(replace(pod, policy_expires_at=later) for pod in first.report.pods)
    again = replace(first, report=replace(first.report, pods=pods))
    held.book.heard_service(again, asked_at_s=2)
    assert held.names() == []
    assert held.book.service("team", "chat") == again


def test_a_refused_wish_waits_and_another_one_does_not() -> None:
    held = Book()
    refusal = Refusal(status_code=403, code="namespace_not_bound", message="no")
    place = ("job", "a", "PutBatchJob")
    assert held.book.refuse(place, refusal, wish="first")
    assert not held.book.refuse(place, refusal, wish="first")
    assert held.book.held_s(place, wish="first") == ASK_AGAIN_S
    assert held.book.held_s(place, wish="second") == 0
    held.now_s += ASK_AGAIN_S
    assert held.book.held_s(place, wish="first") == 0
    assert held.book.refusal(place) == refusal  # until it is accepted
    assert held.book.refusals_under(("job",)) == {("a", "PutBatchJob"): refusal}
    assert held.book.accept(place)
    assert held.book.refusal(place) is None


def test_what_was_refused_to_an_object_that_is_gone_counts_for_no_namesake() -> None:
    held = Book()
    refusal = Refusal(status_code=422, code="x", message="no")
    for name in ("chat", "other"):
        held.book.refuse(("child", "LLMService", "team", name, "Service"), refusal, wish="w")
    held.book.forget_refusals(("child", "LLMService", "team", "chat"))
    left = held.book.refusals_under(("child", "LLMService", "team"))
    assert set(left) == {("other", "Service")}


def answering(*answers: tuple[int, object], seen: list[dict[str, str]] | None = None) -> ASGIApp:
    """An ASGI application that gives these answers in turn, the last one for ever; bytes as is."""
    left = list(answers)

    async def app(
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        await receive()
        if seen is not None:
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            seen.append({"path": scope["path"], "query": scope["query_string"].decode(), **headers})
        status, body = left.pop(0) if len(left) > 1 else left[0]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})

    return app


@pytest.fixture
async def client_to() -> AsyncIterator[Callable[..., ControlPlaneClient]]:
    made: list[httpx.AsyncClient] = []

    def make(url: str, *, token: Path | None = None) -> ControlPlaneClient:
        auth = TokenFile(token) if token else None
        http = httpx.AsyncClient(base_url=url, auth=auth, timeout=60, trust_env=False)
        made.append(http)
        random = Random(1)  # noqa: S311
        return ControlPlaneClient(http, metrics=OperatorMetrics(), random=random)

    yield make
    for http in made:
        await http.aclose()


VIEW: dict[str, Any] = {
    "uid": "u1",
    "namespace": "team",
    "name": "nightly",
    "batch_id": "batch_1",
    "status": "in_progress",
    "suspended": False,
    "input_matches": True,
    "model": "m",
    "request_counts": {"total": 300, "completed": 12, "failed": 1},
    "created_at": 1.0,
    "in_progress_at": 2.0,
    "expires_at": 3.0,
    "ended_at": None,
    "deadline_at": None,
    "eta_at": None,
    "predicted_miss": False,
    "waiting_reason": None,
    "waiting_message": None,
    "errors": [],
    "output_file_id": None,
    "error_file_id": None,
    "output_link": None,
    "error_link": None,
    "links_expire_at": None,
    "delivery": {"state": "none", "output_uri": None, "error_uri": None, "message": None},
}


async def test_pages_are_read_to_the_end(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient]
) -> None:
    seen: list[dict[str, str]] = []
    first = {"data": [VIEW], "has_more": True, "last_uid": "u1"}
    last = {"data": [{**VIEW, "uid": "u2"}], "has_more": False, "last_uid": "u2"}
    async with serve_app(answering((200, first), (200, last), seen=seen)) as url:
        jobs = await client_to(url).jobs()
    assert [heard.uid for heard in jobs] == ["u1", "u2"]
    assert [request["query"] for request in seen] == ["", "after=u1"]
    assert jobs[0].report.completed_lines == 12


async def test_a_short_failure_is_retried_and_a_refusal_is_not(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient]
) -> None:
    seen: list[dict[str, str]] = []
    async with serve_app(answering((503, {}), (200, VIEW), seen=seen)) as url:
        heard = await client_to(url).job("u1")
    assert heard is not None
    assert len(seen) == 2
    seen.clear()
    error = {"error": {"message": "no tenant owns team", "code": "namespace_not_bound"}}
    async with serve_app(answering((403, error), seen=seen)) as url:
        with pytest.raises(ControlPlaneError, match="no tenant") as raised:
            await client_to(url).job("u1")
    assert raised.value.refused
    assert len(seen) == 1


async def test_what_is_answered_in_the_place_of_an_answer_is_kept_until_it_is_another(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient]
) -> None:
    """Of each change every object hears, whose conditions tell of it."""
    held = Book()
    wrong = {"error": {"message": "the token is of nobody who is expected", "code": "forbidden"}}
    empty = {"data": [], "has_more": False, "last_uid": None}
    said: list[str | None] = []
    api = cast("ClusterApi", None)  # never asked: there is nothing that could be orphaned
    pace = Pace(interval_s=5, namespaces=(), clock=lambda: held.now_s, random=Random(1))  # noqa: S311
    answers = ((403, wrong), (403, wrong), (200, empty))
    async with serve_app(answering(*answers)) as url:
        progress = Progress(
            client_to(url),
            held.book,
            ObjectStore(held.keys.append),
            api,
            pace=pace,
            metrics=OperatorMetrics(),
        )
        for _ in answers:
            held.now_s += 1
            await progress.look()
            said.append(held.book.complaint)
    assert said == [wrong["error"]["message"]] * 2 + [None]
    assert held.changes == 2
    await progress.look()  # nobody listens there any more
    assert not held.book.reached
    assert held.book.complaint is None


async def test_an_orphan_that_cannot_be_ended_yet_keeps_no_others() -> None:
    asked: list[object] = []

    class Refusing:
        async def jobs(self) -> list[HeardJob]:
            return [
                job("u1", status="completed"),
                job("u2"),
                job("u3", status="finalizing"),
                job("u4", status="delivering"),  # neither can be cancelled: they end by themselves
            ]

        async def services(self) -> list[HeardService]:
            return []

        async def perform(self, request: object) -> None:
            asked.append(request)
            if request == ForgetBatch(uid="u1"):
                raise ControlPlaneError("it has not ended", status=409, code="not_ended")

    class Empty:
        async def list(
            self, _kind: object, *, namespace: str | None, keep: object
        ) -> SimpleNamespace:
            assert namespace is None
            assert keep is not None
            return SimpleNamespace(items=[])

    held = Book()
    progress = Progress(
        cast("ControlPlaneClient", Refusing()),
        held.book,
        ObjectStore(held.keys.append),
        cast("ClusterApi", Empty()),
        pace=Pace(interval_s=5, namespaces=(), clock=lambda: held.now_s, random=Random(1)),  # noqa: S311
        metrics=OperatorMetrics(),
    )
    await progress.look()
    assert asked == [ForgetBatch(uid="u1"), CancelBatch(uid="u2")]


@pytest.mark.parametrize("status", ["cancelling", "finalizing", "delivering"])
async def test_an_orphan_that_ends_by_itself_has_no_list_of_the_cluster_read(status: str) -> None:
    """It may take hours, and would be looked for every few seconds."""

    class Ending:
        async def jobs(self) -> list[HeardJob]:
            return [job("u1", status=status)]

        async def services(self) -> list[HeardService]:
            return []

    class Cluster:
        async def list(self, kind: Kind, **_: object) -> None:
            lists.append(kind.kind)

    lists: list[str] = []
    held = Book()
    progress = Progress(
        cast("ControlPlaneClient", Ending()),
        held.book,
        ObjectStore(held.keys.append),
        cast("ClusterApi", Cluster()),
        pace=Pace(interval_s=5, namespaces=(), clock=lambda: held.now_s, random=Random(1)),  # noqa: S311
        metrics=OperatorMetrics(),
    )
    await progress.look()
    assert lists == []


async def test_an_unknown_batch_is_an_answer_and_another_404_is_not(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient]
) -> None:
    unknown = {"error": {"message": "unknown", "code": "batch_not_found"}}
    async with serve_app(answering((404, unknown))) as url:
        client = client_to(url)
        assert await client.job("u1") is None
        assert await client.perform(CancelBatch(uid="u1")) is None
    async with serve_app(answering((404, {"detail": "Not Found"}))) as url:
        with pytest.raises(ControlPlaneError):
            await client_to(url).job("u1")  # a proxy, or a control plane of another release


async def test_what_a_proxy_says_is_not_taken_for_the_control_planes_word(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient]
) -> None:
    for page in (b"<html>Request Entity Too Large</html>", b"[" * 100_000):
        async with serve_app(answering((413, page))) as url:
            with pytest.raises(ControlPlaneError, match="before the control plane") as raised:
                await client_to(url).job("u1")
        assert raised.value.code == "foreign_answer"
    async with serve_app(answering((200, b"[" * 100_000))) as url:
        with pytest.raises(ControlPlaneError, match="the answer is not JSON"):
            await client_to(url).job("u1")


async def test_an_answer_that_lacks_a_field_is_no_answer(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient]
) -> None:
    partial = {name: value for name, value in VIEW.items() if name != "status"}
    async with serve_app(answering((200, partial))) as url:
        with pytest.raises(ControlPlaneError, match="status") as raised:
            await client_to(url).job("u1")
    assert raised.value.unreachable


async def test_an_answer_of_something_else_is_told_by_what_was_asked_for(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient]
) -> None:
    """Of a missing field the name alone stood in the conditions, such as 'namespace'."""
    pods = RegisterPods(namespace="a", name="s", model="m", service_account="s", pods=())
    async with serve_app(answering((200, {"data": []}))) as url:
        with pytest.raises(ControlPlaneError, match=r"BatchJob.*uid"):
            await client_to(url).job("u1")
        with pytest.raises(ControlPlaneError, match=r"LLMService.*namespace"):
            await client_to(url).perform(pods)


@pytest.mark.parametrize("item", [None, 1, "job"])
async def test_an_answer_whose_objects_are_none_is_no_answer(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient], item: object
) -> None:
    """The process of the operator ended, each time that it looked."""
    async with serve_app(answering((200, {"data": [item]}))) as url:
        client = client_to(url)
        for look in (client.jobs, client.services):
            with pytest.raises(ControlPlaneError) as raised:
                await look()
            assert raised.value.complaint is not None


async def test_the_token_is_read_again_for_each_call(
    serve_app: Serve, client_to: Callable[..., ControlPlaneClient], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    seen: list[dict[str, str]] = []
    async with serve_app(answering((200, VIEW), seen=seen)) as url:
        client = client_to(url, token=token)
        for text in ("first\n", "second\n"):
            await asyncio.to_thread(token.write_text, text)
            await client.job("u1")
        await asyncio.to_thread(token.write_bytes, b"\xff\xfe")  # nor may it end the operator
        with pytest.raises(ControlPlaneError, match=r"not text .*CONTROL_PLANE_TOKEN_FILE"):
            await client.job("u1")
        token.unlink()
        with pytest.raises(ControlPlaneError, match="CONTROL_PLANE_TOKEN_FILE"):
            await client.job("u1")
    assert [request["authorization"] for request in seen] == ["Bearer first", "Bearer second"]


async def test_nobody_listening_is_unreachable(
    client_to: Callable[..., ControlPlaneClient],
) -> None:
    with pytest.raises(ControlPlaneError) as raised:
        await client_to("http://127.0.0.1:9").services()
    assert raised.value.unreachable
