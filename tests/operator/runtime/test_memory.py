"""What an operator keeps of objects that are gone: nothing, however many there were."""

from __future__ import annotations

import copy
import gc
import itertools
from typing import Any, cast

from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.errors import NotFoundError, RefusedError
from weir_operator.cluster.store import ObjectStore
from weir_operator.cluster.writer import Writer
from weir_operator.control_plane.client import ControlPlaneClient, ControlPlaneError
from weir_operator.control_plane.reports import ReportBook
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.kinds import BATCH_JOB, CHILD_KINDS, LLM_SERVICE, PDB, Kind
from weir_operator.planning.observed import OperatorDefaults
from weir_operator.planning.types import Manifest, ObjectKey
from weir_operator.reconcile.children import Children
from weir_operator.reconcile.execute import Executor
from weir_operator.reconcile.gate import StatusGate
from weir_operator.reconcile.observe import Observer, ObserverTerms
from weir_operator.reconcile.reconciler import Reconciler
from weir_operator.reconcile.requests import Requests

PASSING = "passing-through"
DEFAULTS = OperatorDefaults(
    control_plane_url="http://weir-controlplane.weir:8080",
    control_plane_namespace="weir",
    vllm_image="example.org/weir-agent-vllm:1",
    torch_image="example.org/weir-agent-torch:1",
)
_VERSIONS = itertools.count(1)


class Cluster:
    """An API server that takes everything but PodDisruptionBudgets."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        """Nothing is there that was not told."""
        raise NotFoundError(f"{kind.kind} {namespace}/{name}")

    async def apply(
        self, kind: Kind, manifest: Manifest, *, status: bool = False
    ) -> dict[str, Any]:
        """The object as it is then."""
        if kind == PDB:
            raise RefusedError("not here", status=422)
        name = str(manifest["metadata"]["name"])
        known = self.objects.get((kind.kind, name), {"metadata": {"uid": f"uid-{kind.kind}"}})
        metadata = {**known["metadata"], **manifest["metadata"]}
        metadata["resourceVersion"] = str(next(_VERSIONS))
        if not status:  # an apply without our finalizer takes it off
            metadata["finalizers"] = manifest["metadata"].get("finalizers", [])
        made = {**known, **manifest, "metadata": metadata}
        self.objects[kind.kind, name] = made
        return copy.deepcopy(made)

    async def create(self, _kind: Kind, manifest: Manifest) -> dict[str, Any]:
        """Events."""
        return dict(manifest)


class ControlPlane:
    """Refuses everything."""

    async def perform(self, request: object) -> None:
        """A refusal that no later try changes."""
        raise ControlPlaneError(f"{type(request).__name__}: no", status=422, code="no")


class World:
    """The parts of an operator that remember."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        api = cast("ClusterApi", self.cluster)
        client = cast("ControlPlaneClient", ControlPlane())
        clock, metrics = lambda: 0.0, OperatorMetrics()
        self.store = ObjectStore(lambda _: None)
        self.reports = ReportBook(lambda _: None, on_reached=lambda: None, clock=clock)
        terms = ObserverTerms(defaults=DEFAULTS, finalizer_deadline_s=60)
        observer = Observer(self.store, self.reports, api, client, terms=terms, clock=clock)
        writer = Writer(api, self.store, metrics=metrics, instance="operator-0")
        executor = Executor(
            Children(writer, self.reports),
            writer,
            Requests(client, self.reports, clock=clock),
            self.reports,
            StatusGate(writes_per_s=1e6, interval_s=0, clock=clock),
        )
        self.reconciler = Reconciler(observer, executor, metrics=metrics)
        self.reports.reach(answered=True)
        self.reports.heard_all([], [], asked_at_s=0)

    async def live(self, kind: Kind, item: dict[str, Any]) -> None:
        """An object comes, is reconciled until nothing is new, and goes with its children."""
        metadata = item["metadata"]
        key = ObjectKey(kind=kind.kind, namespace=metadata["namespace"], name=metadata["name"])
        self.cluster.objects[kind.kind, key.name] = item
        self.store.seen(kind, item)
        for _ in range(4):
            await self.reconciler.reconcile(key)
        for child in CHILD_KINDS:
            for found in list(self.store.of_service(child, key.namespace, key.name)):
                self.store.gone(child, found)
        self.store.gone(kind, item)
        await self.reconciler.reconcile(key)
        self.store.replace(kind, [], str(next(_VERSIONS)), newest=0)  # the next full list
        self.cluster.objects.clear()


def item(kind: Kind, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": PASSING,
            "uid": f"uid-{next(_VERSIONS)}",
            "resourceVersion": str(next(_VERSIONS)),
            "generation": 1,
        },
        "spec": spec,
    }


def kept() -> list[object]:
    """The keys of every mapping of this process that name the namespace."""
    gc.collect()
    mappings = [found for found in gc.get_objects() if type(found) is dict]
    return [
        key for found in mappings for key in list(found) if type(key) is tuple and PASSING in key
    ]


async def test_nothing_is_kept_of_services_and_jobs_that_are_gone() -> None:
    world = World()
    for number in range(3):
        service = item(LLM_SERVICE, f"chat-{number}", {"model": {"uri": "hf://a/b"}})
        world.store.seen(LLM_SERVICE, service)
        wish = {"serviceRef": {"name": f"chat-{number}"}, "input": {"inline": "{}"}}
        await world.live(BATCH_JOB, item(BATCH_JOB, f"job-{number}", wish))
        await world.live(LLM_SERVICE, service)
    assert kept() == []
