"""What is said of a service while its children change, are fought over, or cannot be deleted."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.operator.planning.worlds import (
    DEFAULTS,
    batchjob,
    condition,
    deployment_status,
    llmservice,
    message,
)
from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.errors import (
    ClusterError,
    ForbiddenError,
    NotFoundError,
    UnreachableError,
)
from weir_operator.cluster.store import ObjectStore
from weir_operator.cluster.writer import Writer
from weir_operator.control_plane.client import ControlPlaneClient, HeardJob, HeardService
from weir_operator.control_plane.reports import ASK_AGAIN_S, MOST_CORRECTIONS, ReportBook
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.kinds import (
    BATCH_JOB,
    DEPLOYMENT,
    HPA,
    LLM_SERVICE,
    SCALED_OBJECT,
    SERVICE_ACCOUNT,
    Kind,
)
from weir_operator.planning.observed import BatchReport, PodReport, ServiceReport
from weir_operator.planning.types import EventNote, Manifest, ObjectKey, PutBatchJob, RegisterPods
from weir_operator.reconcile.children import TOLD_AFTER_S, Children
from weir_operator.reconcile.execute import Executor
from weir_operator.reconcile.gate import StatusGate
from weir_operator.reconcile.observe import Observer, ObserverTerms
from weir_operator.reconcile.reconciler import Reconciler
from weir_operator.reconcile.requests import Requests
from weir_operator.workqueue import RetryError

KEY = ObjectKey(kind="LLMService", namespace="team", name="chat")
JOB = ObjectKey(kind="BatchJob", namespace="team", name="night")
ACCOUNT, PODS = ("ServiceAccount", "chat"), ("Deployment", "chat")
FOREIGN_ACCOUNT = {"kind": "ServiceAccount", "metadata": {"name": "chat", "uid": "theirs"}}
THEIRS = "Theirs"
SCALED = {"type": "HPA", "maxReplicas": 4, "metrics": [{"type": "Resource"}]}
ROUNDS = 20


class Cluster:
    """An API server in memory, and a watch that tells the store of what others change."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.statuses: list[Manifest] = []
        self.events: list[Manifest] = []
        self.keeps: ClusterError | None = None  # said instead of a deletion
        self.mutes: ClusterError | None = None  # said instead of taking a status
        self.hides: ClusterError | None = None  # said instead of whether there is an account
        self.denies: ClusterError | None = None  # said instead of taking an account
        self.unlabelled: dict[tuple[str, str], dict[str, Any]] = {}  # which no watch tells of
        self.keda = False  # whether its webhook is there
        self.strips = False  # whether a policy takes labels that it does not know off Deployments
        self.fights = False  # whether somebody changes each Deployment back at once
        self._versions = itertools.count(1)

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        """Nothing is there that was not told, but for what has no label."""
        if self.hides is not None and kind == SERVICE_ACCOUNT:
            raise self.hides
        if (kind.kind, name) in self.unlabelled:
            return self.unlabelled[kind.kind, name]
        raise NotFoundError(f"{kind.kind} {namespace}/{name}")

    async def apply(
        self, kind: Kind, manifest: Manifest, *, status: bool = False
    ) -> dict[str, Any]:
        """The object as it is then; one that is so already keeps its version."""
        place = (kind.kind, str(manifest["metadata"]["name"]))
        if self.denies is not None and kind == SERVICE_ACCOUNT:
            raise self.denies
        if self.keda and kind == SCALED_OBJECT and (HPA.kind, place[1]) in self.objects:
            raise ForbiddenError(f"the workload is already managed by the hpa {place[1]}")
        if status:
            if self.mutes is not None:
                raise self.mutes
            self.statuses.append(manifest["status"])
            live = self.objects[place]
            before = live.get("status", {})
            theirs = [item for item in before.get("conditions", ()) if item["reason"] == THEIRS]
            after = manifest["status"]
            after = {**after, "conditions": [*after["conditions"], *theirs]}
            return live if after == before else self._put(place, {"status": after})
        known = self.objects.get(place, {})
        given = {name: value for name, value in manifest.items() if name != "metadata"}
        if known and all(known.get(name) == value for name, value in given.items()):
            return known
        metadata = {**manifest["metadata"], "uid": f"uid-{kind.kind}"}
        metadata["generation"] = known.get("metadata", {}).get("generation", 0) + 1
        if self.strips and kind == DEPLOYMENT:
            metadata["labels"] = {}
        made = self._put(place, {**given, "metadata": metadata})
        if self.fights and kind == DEPLOYMENT:
            self.change(place, {"spec": {**made["spec"], "paused": True}})
        return made

    async def delete(self, kind: Kind, _namespace: str, name: str, *, uid: str) -> None:
        """The object goes, if it may."""
        if self.keeps is not None:
            raise self.keeps
        gone = self.objects.pop((kind.kind, name))
        assert gone["metadata"]["uid"] == uid
        self.store.gone(kind, gone)

    async def create(self, _kind: Kind, manifest: Manifest) -> dict[str, Any]:
        """Events."""
        self.events.append(manifest)
        return dict(manifest)

    def change(self, place: tuple[str, str], content: Mapping[str, Any]) -> None:
        """Somebody else changes an object."""
        kind = next(kind for kind in (LLM_SERVICE, BATCH_JOB, DEPLOYMENT) if kind.kind == place[0])
        self.store.seen(kind, self._put(place, content))

    def _put(self, place: tuple[str, str], content: Mapping[str, Any]) -> dict[str, Any]:
        made = {**self.objects.get(place, {}), **content}
        made["metadata"] = {**made["metadata"], "resourceVersion": str(next(self._versions))}
        self.objects[place] = made
        return made


class ControlPlane:
    """Takes whatever it is told."""

    async def perform(self, request: object) -> HeardService | HeardJob:
        """The service, or the batch, as it is known then."""
        if isinstance(request, PutBatchJob):
            held = BatchReport(uid=request.uid, batch_id=None, status="suspended", suspended=True)
            return HeardJob(namespace="team", name=request.name, uid=request.uid, report=held)
        assert isinstance(request, RegisterPods)
        report = ServiceReport(
            model=request.model,
            service_account=request.service_account,
            pods=tuple(PodReport(uid=pod.uid, name=pod.name) for pod in request.pods),
        )
        return HeardService(namespace=request.namespace, name=request.name, report=report)


class World:
    """An operator's reconciles of one LLMService, on a clock of their own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.keys: list[ObjectKey] = []
        self.generation = 0
        store = ObjectStore(self.keys.append)
        self.cluster = Cluster(store)
        api = cast("ClusterApi", self.cluster)
        client = cast("ControlPlaneClient", ControlPlane())
        metrics = OperatorMetrics()
        reports = ReportBook(self.keys.append, on_reached=lambda: None, clock=self.clock)
        self.reports = reports
        terms = ObserverTerms(defaults=DEFAULTS, finalizer_deadline_s=60)
        self.observer = Observer(store, reports, api, client, terms=terms, clock=self.clock)
        writer = Writer(api, store, metrics=metrics, instance="operator-0")
        executor = Executor(
            Children(writer, reports),
            writer,
            Requests(client, reports, clock=self.clock),
            reports,
            StatusGate(writes_per_s=1e6, interval_s=0, clock=self.clock),
        )
        self.reconciler = Reconciler(self.observer, executor, metrics=metrics)
        reports.reach(answered=True)
        reports.heard_all([], [], asked_at_s=0)

    def clock(self) -> float:
        """Seconds."""
        return self.now_s

    def ask(self, **spec: object) -> None:
        """The user applies this spec."""
        self.generation += 1
        wish = llmservice(**spec)
        wish["metadata"]["generation"] = self.generation
        self.cluster.change(("LLMService", "chat"), wish)

    def roll_out(self) -> None:
        """The Deployment's controller has done what it was asked."""
        place = ("Deployment", "chat")
        live = self.cluster.objects[place]
        generation, ready = live["metadata"]["generation"], live["spec"]["replicas"]
        status = deployment_status(ready, observedGeneration=generation)
        self.cluster.change(place, {"status": status})

    async def settle(self) -> None:
        """Reconciles for as long as something is to be done at once; what fails, later."""
        for _ in range(ROUNDS):
            self.keys.clear()
            try:
                delay_s = await self.reconciler.reconcile(KEY)
            except RetryError:
                self.now_s += TOLD_AFTER_S
                delay_s = 0.0
            if delay_s != 0.0 and not self.keys:
                return
        raise AssertionError(f"no end in {ROUNDS} rounds: {self.cluster.statuses[-3:]}")

    def lose_account(self) -> None:
        """Somebody deletes the ServiceAccount."""
        self.cluster.store.gone(SERVICE_ACCOUNT, self.cluster.objects.pop(ACCOUNT))

    def registered(self) -> str | None:
        """The model that the control plane knows the service's pods by."""
        heard = self.reports.service(KEY.namespace, KEY.name)
        return None if heard is None else heard.report.model

    @property
    def status(self) -> Manifest:
        """What was said last."""
        return self.cluster.statuses[-1]


async def test_no_status_speaks_of_a_spec_that_its_children_have_not_got() -> None:
    world = World()
    world.ask(replicas=1)
    await world.settle()
    world.roll_out()
    await world.settle()
    assert condition(world.status, "Progressing") == ("False", "RolledOut")
    assert world.status["observedGeneration"] == 1
    said = len(world.cluster.statuses)

    world.ask(replicas=1, engine={"image": "example.org/engine:2"})
    await world.settle()
    told = world.cluster.statuses[said:]
    assert {status["observedGeneration"] for status in told} == {2}
    assert {condition(status, "Progressing") for status in told} == {("True", "RollingOut")}

    world.roll_out()
    await world.settle()
    assert condition(world.status, "Progressing") == ("False", "RolledOut")


async def test_a_child_that_is_changed_back_each_time_is_told_of_and_seldom_put_right() -> None:
    """Each apply of a Deployment restarts pods: two operators did so eight times a second."""
    world = World()
    world.cluster.fights = True
    place = ("Deployment", "chat")
    world.ask(replicas=1)
    for _ in range(3):
        for _ in range(ROUNDS):
            await world.reconciler.reconcile(KEY)
        assert world.cluster.objects[place]["metadata"]["generation"] <= MOST_CORRECTIONS + 1
    assert condition(world.status, "Configured") == ("False", "ChildRefused")
    assert "something changes it back" in message(world.status, "Configured")
    assert world.status["observedGeneration"] == 1
    assert condition(world.status, "Registered") == ("True", "PodsRegistered")

    world.cluster.fights = False
    for _ in range(2):  # put right once more, and seen to stay so
        world.now_s += ASK_AGAIN_S
        await world.settle()
    assert "paused" not in world.cluster.objects[place]["spec"]
    assert condition(world.status, "Configured") == ("True", "Applied")


async def test_a_policy_that_takes_a_childs_label_off_is_told_of() -> None:
    """The Deployment was said not to exist yet for as long as it did, and all to be as asked."""
    world = World()
    world.cluster.strips = True
    world.ask(replicas=1)
    await world.settle()
    assert condition(world.status, "Configured") == ("False", "ChildRefused")
    assert "Deployment chat" in message(world.status, "Ready")
    assert "takes its label weir.dev/llmservice off" in message(world.status, "Ready")

    world.cluster.strips = False
    world.cluster.objects.pop(("Deployment", "chat"))  # so that the next apply makes a change
    world.now_s += ASK_AGAIN_S
    await world.settle()
    assert condition(world.status, "Configured") == ("True", "Applied")
    assert condition(world.status, "Available") == ("False", "TooFewReady")


async def test_no_pod_is_made_to_run_under_an_account_of_somebody_else() -> None:
    """Whoever may make LLMServices alone had the token of any account of the namespace."""
    world = World()
    world.cluster.unlabelled[ACCOUNT] = FOREIGN_ACCOUNT
    world.ask(replicas=1)
    for _ in range(2):  # the second time the account's refusal is held, and not asked for anew
        await world.settle()
        assert PODS not in world.cluster.objects
    assert ACCOUNT not in world.cluster.objects
    assert ("Service", "chat") in world.cluster.objects
    assert condition(world.status, "Configured") == ("False", "ChildRefused")
    told = "ServiceAccount chat exists and does not belong to this LLMService"
    assert told in message(world.status, "Ready")
    world.ask(replicas=2, engine={"image": "example.org/engine:2"})
    await world.settle()
    assert PODS not in world.cluster.objects

    del world.cluster.unlabelled[ACCOUNT]
    world.now_s += ASK_AGAIN_S
    await world.settle()
    assert {ACCOUNT, PODS} <= world.cluster.objects.keys()
    assert condition(world.status, "Configured") == ("True", "Applied")


async def test_pods_stay_as_they_are_once_their_account_is_somebody_elses() -> None:
    world = World()
    world.ask(replicas=1)
    await world.settle()
    before = world.cluster.objects[PODS]
    world.lose_account()
    world.cluster.unlabelled[ACCOUNT] = FOREIGN_ACCOUNT
    world.ask(replicas=2, engine={"image": "example.org/engine:2"})
    await world.settle()
    assert world.cluster.objects[PODS] == before
    assert condition(world.status, "Configured") == ("False", "ChildRefused")
    assert "ServiceAccount chat" in message(world.status, "Ready")


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("no answer in 3 s"),
        ForbiddenError("no account is read on a Friday", status=403),
    ],
    ids=["no answer", "refused"],
)
async def test_no_pod_is_made_before_it_is_known_whose_the_account_is(error: ClusterError) -> None:
    world = World()
    world.cluster.hides = error
    world.ask(replicas=1)
    await world.settle()
    assert PODS not in world.cluster.objects
    assert ("Service", "chat") in world.cluster.objects
    assert str(error) in message(world.status, "Configured")

    world.cluster.hides = None
    world.now_s += ASK_AGAIN_S
    await world.settle()
    assert {ACCOUNT, PODS} <= world.cluster.objects.keys()


async def test_an_account_of_ours_that_cannot_be_put_right_holds_no_pods_up() -> None:
    world = World()
    world.ask(replicas=1)
    await world.settle()
    edited = {**world.cluster.objects[ACCOUNT], "automountServiceAccountToken": True}
    edited["metadata"] = {**edited["metadata"], "resourceVersion": "1000"}
    world.cluster.objects[ACCOUNT] = edited
    world.cluster.store.seen(SERVICE_ACCOUNT, edited)
    world.cluster.denies = ForbiddenError("no account is changed on a Friday", status=403)
    world.ask(replicas=2)
    await world.settle()
    assert "on a Friday" in message(world.status, "Configured")
    assert world.cluster.objects[PODS]["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    "error",
    [
        ForbiddenError("no autoscaler is deleted on a Friday", status=403),
        ClusterError("no autoscaler is deleted now: the webhook is down", status=500),
    ],
    ids=["refused", "fails"],
)
async def test_a_child_that_cannot_be_deleted_is_told_of_and_holds_up_nothing(
    error: ClusterError,
) -> None:
    world = World()
    world.ask(replicas=1, autoscaling=SCALED)
    await world.settle()
    place = (HPA.kind, "chat")
    assert place in world.cluster.objects
    world.cluster.keeps = error

    world.ask(replicas=2, model={"servedName": "other"})
    await world.settle()
    assert place in world.cluster.objects
    assert world.status["observedGeneration"] == 2
    assert condition(world.status, "Configured") == ("False", "ChildRefused")
    assert "no autoscaler is deleted" in message(world.status, "Configured")
    assert condition(world.status, "Registered") == ("True", "PodsRegistered")
    assert world.status["model"] == "other"
    said = len(world.cluster.statuses)
    await world.settle()
    assert len(world.cluster.statuses) == said

    world.cluster.keeps = None
    world.now_s += ASK_AGAIN_S
    await world.settle()
    assert place not in world.cluster.objects
    assert condition(world.status, "Configured") == ("True", "Applied")


@pytest.mark.parametrize(
    "error",
    [
        ClusterError("failed calling webhook: connection refused", status=500),
        UnreachableError("no answer in 3 s"),
    ],
    ids=["fails", "no answer"],
)
async def test_pods_are_registered_while_a_webhook_lets_no_status_through(
    error: ClusterError,
) -> None:
    """Agents of new pods got no work for as long as a webhook on every subresource was down."""
    world = World()
    world.cluster.mutes = error
    world.ask(replicas=1)
    for _ in range(ROUNDS):
        with contextlib.suppress(RetryError):
            await world.reconciler.reconcile(KEY)
    assert world.cluster.statuses == []
    assert world.registered() == "chat"

    world.cluster.mutes = None
    await world.settle()
    assert condition(world.status, "Registered") == ("True", "PodsRegistered")


async def test_a_condition_that_somebody_adds_to_a_batch_stays_and_is_not_fought_over() -> None:
    """The same status was written again every few seconds for as long as it was there."""
    world, place = World(), ("BatchJob", "night")
    world.cluster.change(place, batchjob(suspend=True))
    while (await world.reconciler.reconcile(JOB)) == 0.0:
        pass
    assert condition(world.status, "Suspended") == ("True", "Suspended")

    ours = world.cluster.objects[place]["status"]
    added = {**ours["conditions"][0], "type": "Audited", "reason": THEIRS}
    theirs = {**ours, "conditions": [*ours["conditions"], added]}
    world.cluster.change(place, {"status": theirs})
    for _ in range(3):  # it may write once to see that there is nothing to put right
        delay_s = await world.reconciler.reconcile(JOB)
        assert delay_s != 0.0
    assert world.cluster.objects[place]["status"] == theirs


async def test_an_autoscaler_goes_before_the_one_that_takes_its_place_comes() -> None:
    """KEDA's webhook refused its ScaledObject, and the service had no autoscaler for a minute."""
    world = World()
    world.cluster.keda = True
    world.observer.optional_kinds = frozenset({SCALED_OBJECT.kind})
    world.ask(replicas=3, autoscaling=SCALED)
    await world.settle()
    world.ask(
        replicas=3, autoscaling={"type": "KEDA", "maxReplicas": 4, "triggers": [{"type": "cron"}]}
    )
    await world.settle()
    assert (HPA.kind, "chat") not in world.cluster.objects
    assert (SCALED_OBJECT.kind, "chat") in world.cluster.objects
    told = {condition(status, "Configured") for status in world.cluster.statuses}
    assert told == {("True", "Applied")}
    assert world.cluster.objects["Deployment", "chat"]["spec"]["replicas"] == 3


@pytest.mark.parametrize("text", ["x" * 1025, "x" * 1023 + "…", "é" * 600, "中" * 400])
async def test_an_event_says_no_more_bytes_than_the_api_server_takes(text: str) -> None:
    world = World()
    api = cast("ClusterApi", world.cluster)
    writer = Writer(api, world.cluster.store, metrics=OperatorMetrics(), instance="operator-0")
    note = EventNote(type="Warning", reason="ChildRefused", message=text)
    world.ask()
    await writer.send_event(world.cluster.objects["LLMService", "chat"], note)
    [event] = world.cluster.events
    assert 1020 < len(event["note"].encode()) <= 1024
    assert event["note"].endswith("…")
    assert text.startswith(event["note"].removesuffix("…"))
