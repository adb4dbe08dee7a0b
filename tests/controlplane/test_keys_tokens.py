"""ServiceAccount tokens: who may call as what, how long an answer holds, what an outage changes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.controlplane.agent_sim import BIG_ROOM, telemetry
from tests.controlplane.kubernetes_sim import FakeApiServer, token_of
from tests.controlplane.support import Plane, eventually, make_settings, running
from tests.support.serving import serve
from weir_controlplane.errors import OverloadedError
from weir_controlplane.keys import token_review
from weir_controlplane.keys.token_review import (
    MAX_STRANGERS,
    STRANGERS_AGAIN_S,
    TokenReviewer,
    looks_like_token,
)
from weir_controlplane.store.database import Database

PODS = [{"uid": "uid-0", "name": "llama-0"}, {"uid": "uid-1", "name": "llama-1"}]
SERVICE = {"service_account": "llama", "pods": PODS}


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """A machine that stands still is no API server that does not answer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(token_review, "TIMEOUT_S", 120.0)
        patched.setattr(token_review, "FRESH_WITHIN_S", 120.0)
        yield


def sync_body(sequence: int = 1, service: str = "team-a/llama") -> dict[str, Any]:
    return {
        "boot_id": "boot",
        "incarnation": None,
        "sequence": sequence,
        "service": service,
        "models": [{"name": "tiny"}],
        "state": "serving",
        "room": BIG_ROOM,
        "telemetry": telemetry(),
    }


@contextlib.asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Plane, FakeApiServer]]:
    """A control plane that asks a stand-in API server; team-a/llama has two pods."""
    fake = FakeApiServer()
    own = tmp_path / "token"
    own.write_text("own-token\n")
    async with serve(fake.app) as url:
        settings = make_settings(
            tmp_path,
            kubernetes_api_url=url,
            kubernetes_ca_file=None,
            kubernetes_token_file=own,
            operator_service_account="weir-system/weir-operator",
        )
        async with running(settings) as plane:
            operator = token_of("weir-system", "weir-operator", pod="op-0", uid="uid-op")
            async with plane.client(operator) as client:
                put = await client.put("/internal/v1/services/team-a/llama", json=SERVICE)
                assert put.status_code == 200, put.text
            yield plane, fake


async def sync_as(plane: Plane, token: str | None, agent: str, **given: Any) -> httpx.Response:  # noqa: ANN401
    async with plane.client(token) as client:
        return await client.post(f"/internal/v1/agents/{agent}/sync", json=sync_body(**given))


def pod_token(pod: str = "llama-0", uid: str = "uid-0", **given: Any) -> str:  # noqa: ANN401
    return token_of(
        given.pop("namespace", "team-a"), given.pop("account", "llama"), pod=pod, uid=uid, **given
    )


async def test_a_registered_pod_syncs_as_itself(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (plane, fake):
        answer = await sync_as(plane, pod_token(), "team-a.llama-0")
        assert answer.status_code == 200, answer.text
        assert fake.asked[-1]["spec"]["audiences"] == ["weir"]
        assert fake.callers[-1] == "Bearer own-token"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def registered(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plane]:
    """A cluster whose requests are all refused."""
    async with cluster(tmp_path_factory.mktemp("cluster")) as (plane, _):
        yield plane


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("token", "agent", "service", "status", "code"),
    [
        (None, "team-a.llama-0", "team-a/llama", 401, "invalid_api_key"),
        ("nonsense", "team-a.llama-0", "team-a/llama", 401, "invalid_api_key"),
        (pod_token(audience="vault"), "team-a.llama-0", "team-a/llama", 401, "invalid_api_key"),
        (pod_token(life_s=-10), "team-a.llama-0", "team-a/llama", 401, "invalid_api_key"),
        (pod_token(), "team-a.llama-1", "team-a/llama", 403, "insufficient_scope"),
        (pod_token(), "team-a.llama-0", "team-a/other", 403, "insufficient_scope"),
        (pod_token(uid="uid-9"), "team-a.llama-0", "team-a/llama", 403, "pod_not_registered"),
        (pod_token(uid="uid-1"), "team-a.llama-0", "team-a/llama", 403, "pod_not_registered"),
        (pod_token(account="default"), "team-a.llama-0", "team-a/llama", 403, "pod_not_registered"),
        (pod_token(namespace="b"), "team-a.llama-0", "team-a/llama", 403, "pod_not_registered"),
        (token_of("team-a", "llama"), "team-a.llama-0", "team-a/llama", 403, "pod_not_registered"),
    ],
    ids=[
        "no token", "no token's shape", "another audience", "expired", "another pod's agent",
        "another service", "pod not registered", "another pod's uid", "another account",
        "another namespace", "bound to no pod",
    ],
)  # fmt: skip
async def test_everybody_else_is_refused(
    registered: Plane, token: str | None, agent: str, service: str, status: int, code: str
) -> None:
    answer = await sync_as(registered, token, agent, service=service)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_an_agent_is_no_operator_and_no_tenant(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (plane, _):
        async with plane.client(pod_token()) as client:
            for path in ("/internal/v1/batchjobs", "/internal/v1/agents", "/v1/batches"):
                assert (await client.get(path)).status_code == 403
        async with plane.client(token_of("weir-system", "weir-operator")) as client:
            assert (await client.get("/internal/v1/batchjobs")).status_code == 200
            assert (await client.get("/admin/v1/keys")).status_code == 403


async def test_a_pod_that_is_gone_is_refused_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (plane, _):
        assert (await sync_as(plane, pod_token(), "team-a.llama-0")).status_code == 200
        body = {**SERVICE, "pods": PODS[1:]}
        put = await plane.admin.put("/internal/v1/services/team-a/llama", json=body)
        assert [pod["name"] for pod in put.json()["pods"]] == ["llama-1"]
        answer = await sync_as(plane, pod_token(), "team-a.llama-0", sequence=2)
        assert answer.json()["error"]["code"] == "pod_not_registered"


class LateDatabase:
    """Gives what it has read only when it may."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[LateDatabase]:
        yield self

    async def execute(self, statement: Any) -> Any:  # noqa: ANN401
        async with self.database.read() as session:
            rows = (await session.execute(statement)).all()
        self.has_read.set()
        await self.may_answer.wait()
        return rows


async def test_a_look_at_the_pods_that_took_long_brings_none_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (plane, _), asyncio.timeout(120):
        assert (await sync_as(plane, pod_token(), "team-a.llama-0")).status_code == 200
        late = LateDatabase(plane.services.database)
        looking = asyncio.create_task(plane.services.pods.read(cast("Database", late)))
        await late.has_read.wait()
        body = {**SERVICE, "pods": PODS[1:]}
        assert (await plane.admin.put("/internal/v1/services/team-a/llama", json=body)).is_success
        late.may_answer.set()
        await looking
        answer = await sync_as(plane, pod_token(), "team-a.llama-0", sequence=2)
        assert answer.status_code == 403, answer.text


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.asynccontextmanager
async def reviewing(
    own: Path | None = None,
) -> AsyncIterator[tuple[TokenReviewer, FakeApiServer, Clock, Clock]]:
    fake, clock, wall = FakeApiServer(), Clock(), Clock()
    wall.now_s = 0.0
    async with serve(fake.app) as url:
        reviewer = TokenReviewer(
            api_url=url,
            ca_file=None,
            token_file=own,
            audience="weir",
            clock_s=clock,
            wall_clock_s=wall,
        )
        yield reviewer, fake, clock, wall
        await reviewer.close()


async def test_an_answer_is_kept_for_a_minute() -> None:
    async with reviewing() as (reviewer, fake, clock, _):
        token = pod_token()
        await asyncio.gather(*(reviewer.bearer(token) for _ in range(20)))
        clock.now_s += 59
        bearer = await reviewer.bearer(token)
        assert bearer is not None
        assert (bearer.pod_uid, bearer.service_account, len(fake.asked)) == ("uid-0", "llama", 1)
        clock.now_s += 2
        fake.revoked.add(token)
        assert await reviewer.bearer(token) is None


async def test_an_outage_is_bridged_for_ten_minutes_and_no_longer() -> None:
    async with reviewing() as (reviewer, fake, clock, _):
        token = pod_token()
        assert await reviewer.bearer(token) is not None
        fake.away = True
        clock.now_s += 599
        assert await reviewer.bearer(token) is not None
        with pytest.raises(OverloadedError):  # new agents wait
            await reviewer.bearer(pod_token("llama-1", "uid-1"))
        clock.now_s += 2
        with pytest.raises(OverloadedError):
            await reviewer.bearer(token)
        fake.away = False
        clock.now_s += 1
        assert await reviewer.bearer(token) is not None


async def test_unknown_tokens_hold_few_requests_while_the_api_server_hangs() -> None:
    """Each would hold one of the requests that are answered at once, for as long as it hangs."""
    async with reviewing() as (reviewer, fake, clock, _), asyncio.timeout(60):
        known = pod_token()
        first = await reviewer.bearer(known)
        hangs = fake.hangs = asyncio.Event()
        strange = [pod_token(uid=f"uid-{number}") for number in range(1, 201)]
        tokens = [*strange[:32], *(strange[0] for _ in range(200)), *strange[32:]]
        asking = [asyncio.create_task(reviewer.bearer(token)) for token in tokens]
        await eventually(lambda: sum(task.done() for task in asking) >= 400 - MAX_STRANGERS)
        assert await reviewer.bearer(known) == first
        fake.away = True
        hangs.set()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(answer, OverloadedError) for answer in answers)
        asked = len(fake.callers)
        clock.now_s += STRANGERS_AGAIN_S
        answers = await asyncio.gather(*map(reviewer.bearer, strange), return_exceptions=True)
        assert all(isinstance(answer, OverloadedError) for answer in answers)
        assert len(fake.callers) == asked + 1  # one finds out whether the API server is back
        fake.away = False
        clock.now_s += STRANGERS_AGAIN_S
        assert await reviewer.bearer(strange[0]) is not None
        found = await asyncio.gather(*map(reviewer.bearer, strange[1:50]))
        assert all(bearer is not None for bearer in found)


async def test_refused_tokens_push_out_nobody_who_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can make them up, and an outage must still be bridged for those who are known."""
    monkeypatch.setattr(token_review, "_CACHE_TOKENS", 8)
    async with reviewing() as (reviewer, fake, clock, _):
        token = pod_token()
        first = await reviewer.bearer(token)
        for number in range(20):
            assert await reviewer.bearer(pod_token(uid=f"uid-{number}", audience="vault")) is None
        fake.away = True
        clock.now_s += 61
        assert await reviewer.bearer(token) == first


async def test_reviews_need_no_thread_of_a_file_store_that_hangs(tmp_path: Path) -> None:
    own = tmp_path / "token"
    own.write_text("own-token\n")
    async with reviewing(own) as (reviewer, fake, _, _), asyncio.timeout(60):
        assert await reviewer.bearer(pod_token()) is not None
        hangs, loop = threading.Event(), asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as threads:
            loop.set_default_executor(threads)
            stuck = asyncio.create_task(asyncio.to_thread(hangs.wait, 300))
            await asyncio.sleep(0)
            try:
                assert await reviewer.bearer(pod_token("llama-1", "uid-1")) is not None
            finally:
                hangs.set()
            await stuck
        assert fake.callers == ["Bearer own-token"] * 2


async def test_an_api_server_that_hangs_holds_nobody_up_who_was_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent gives its sync up after five seconds."""
    async with reviewing() as (reviewer, fake, clock, _), asyncio.timeout(60):
        token = pod_token()
        first = await reviewer.bearer(token)
        assert first is not None
        hangs = fake.hangs = asyncio.Event()
        clock.now_s += 61
        with monkeypatch.context() as patched:
            patched.setattr(token_review, "FRESH_WITHIN_S", 0.2)
            assert await reviewer.bearer(token) == first
        clock.now_s += 9
        assert await reviewer.bearer(token) == first  # not asked again: it would wait for ever
        assert len(fake.callers) == 2
        fake.away = True
        clock.now_s += 600
        hangs.set()
        with pytest.raises(OverloadedError):
            await reviewer.bearer(token)


async def test_an_answer_that_comes_late_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reviewing() as (reviewer, fake, clock, _), asyncio.timeout(60):
        token = pod_token()
        first = await reviewer.bearer(token)
        hangs = fake.hangs = asyncio.Event()
        fake.revoked.add(token)
        clock.now_s += 61
        with monkeypatch.context() as patched:
            patched.setattr(token_review, "FRESH_WITHIN_S", 0.2)
            assert await reviewer.bearer(token) == first
        clock.now_s += 11
        hangs.set()
        assert await reviewer.bearer(token) is None
        assert len(fake.callers) == 2


async def test_an_api_server_that_is_away_is_asked_about_a_known_token_now_and_then() -> None:
    async with reviewing() as (reviewer, fake, clock, _):
        token = pod_token()
        assert await reviewer.bearer(token) is not None
        fake.away = True
        clock.now_s += 60
        for _second in range(30):
            assert await reviewer.bearer(token) is not None
            clock.now_s += 1
        assert len(fake.callers) == 1 + 3
        fake.away = False
        fake.revoked.add(token)
        assert await reviewer.bearer(token) is None


async def test_an_outage_never_outlives_the_token() -> None:
    async with reviewing() as (reviewer, fake, clock, _):
        token = pod_token(life_s=300)
        assert (await reviewer.bearer(token)) is not None
        fake.away = True
        clock.now_s += 90
        bearer = await reviewer.bearer(token)
        assert bearer is not None
        clock.now_s += 211
        with pytest.raises(OverloadedError):
            await reviewer.bearer(token)


@pytest.mark.parametrize("ahead_s", [-1e6, 1e6])
async def test_a_replica_whose_clock_is_off_asks_no_more_than_others(ahead_s: float) -> None:
    """Every call was a TokenReview, and an outage of the API server shut all agents out."""
    async with reviewing() as (reviewer, fake, clock, wall):
        wall.now_s = time.time() + ahead_s
        token = pod_token(life_s=300)
        for _second in range(50):
            assert await reviewer.bearer(token) is not None
            clock.now_s += 1
        assert len(fake.asked) == 1
        fake.away = True
        clock.now_s += 60
        assert await reviewer.bearer(token) is not None
        clock.now_s += 200
        with pytest.raises(OverloadedError):
            await reviewer.bearer(token)


async def test_agents_are_told_to_come_back_while_nobody_can_say_who_they_are(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as (plane, fake):
        fake.away = True
        answer = await sync_as(plane, pod_token(), "team-a.llama-0")
        assert answer.status_code == 503
        assert 0 < int(answer.headers["retry-after"]) <= 60


@pytest.mark.parametrize("text", ["", "a.b", "weir_0123", "a b.c.d", "a.b.c" * 10_000])
def test_what_cannot_be_a_token_is_not_asked_about(text: str) -> None:
    assert not looks_like_token(text)


@pytest.mark.system
async def test_a_real_api_server_vouches_for_a_pods_token(
    tmp_path: Path, api_server: ApiServer, kubectl: Kubectl, namespace: str
) -> None:
    pod, own = await asyncio.to_thread(_deploy, kubectl)
    own_file = tmp_path / "own"
    own_file.write_text(own)
    settings = make_settings(
        tmp_path,
        kubernetes_api_url=api_server.endpoint.url,
        kubernetes_ca_file=api_server.endpoint.authority,
        kubernetes_token_file=own_file,
    )
    bound = ("--bound-object-kind=Pod", "--bound-object-name=llama-0")
    good = await _token(kubectl, "llama", "--audience=weir", *bound)
    other_audience = await _token(kubectl, "llama", "--audience=vault", *bound)
    unbound = await _token(kubectl, "llama", "--audience=weir")
    service, agent = f"{namespace}/llama", f"{namespace}.llama-0"
    async with running(settings) as plane:
        body = {"service_account": "llama", "pods": [{"uid": pod, "name": "llama-0"}]}
        put = await plane.admin.put(f"/internal/v1/services/{service}", json=body)
        assert put.status_code == 200, put.text
        answers = [
            await sync_as(plane, token, agent, service=service)
            for token in (good, other_audience, unbound, good[:-4] + "AAAA")
        ]
        assert [answer.status_code for answer in answers] == [200, 401, 403, 401]
        gone = await asyncio.to_thread(
            kubectl.run, "delete", "pod", "llama-0", "--force", "--grace-period=0"
        )
        assert gone.ok
        later = await _fresh(settings, good)
        assert later is None  # the API server knows that the pod is gone


async def _fresh(settings: Any, token: str) -> object:  # noqa: ANN401
    reviewer = TokenReviewer(
        api_url=settings.kubernetes_api_url,
        ca_file=settings.kubernetes_ca_file,
        token_file=settings.kubernetes_token_file,
        audience="weir",
    )
    try:
        async with asyncio.timeout(120):
            while (found := await reviewer.bearer(token)) is not None:
                reviewer._answers.clear()
                await asyncio.sleep(0.2)
        return found
    finally:
        await reviewer.close()


def _deploy(kubectl: Kubectl) -> tuple[str, str]:
    """A pod that nobody runs, and a ServiceAccount that may review tokens; uid and token."""
    security = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    kubectl.apply(
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
            for name in ("llama", "reviewer")
        ),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "llama-0"},
            "spec": {
                "serviceAccountName": "llama",
                "containers": [{"name": "c", "image": "none", "securityContext": security}],
            },
        },
    )
    name = kubectl.run("get", "serviceaccount", "reviewer", "-o", "jsonpath={.metadata.namespace}")
    namespace = name.stdout.strip()
    binding = f"reviewer-{namespace}"
    kubectl.run(
        *("create", "clusterrolebinding", binding, "--clusterrole=system:auth-delegator"),
        f"--serviceaccount={namespace}:reviewer",
    )
    uid = kubectl.run("get", "pod", "llama-0", "-o", "jsonpath={.metadata.uid}").stdout.strip()
    own = kubectl.run("create", "token", "reviewer").stdout.strip()
    return uid, own


async def _token(kubectl: Kubectl, account: str, *options: str) -> str:
    made = await asyncio.to_thread(kubectl.run, "create", "token", account, *options)
    return made.stdout.strip()
