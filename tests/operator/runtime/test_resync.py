"""Full lists where the API server has no answer for one kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.virtual_time import run_virtual
from weir_operator.assembly import Parts
from weir_operator.cluster.api import ClusterApi, ObjectList
from weir_operator.cluster.errors import ClusterError, UnreachableError
from weir_operator.cluster.resync import REQUIRED, Resync
from weir_operator.cluster.store import POD, ObjectStore
from weir_operator.main import Operator
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.kinds import BATCH_JOB, Kind


class Cluster:
    """Lists what there is, and says an error in the place of one kind's list."""

    def __init__(self) -> None:
        pod = {"namespace": "team", "name": "chat-0", "uid": "pod-0", "resourceVersion": "1"}
        self.pods = [{"metadata": pod}]
        self.error: ClusterError | None = None
        self.listed: list[str] = []
        self.version = 0

    async def list(self, kind: Kind, **_: object) -> ObjectList:
        """Everything of a kind."""
        self.listed.append(kind.kind)
        if kind == BATCH_JOB and self.error is not None:
            raise self.error
        self.version += 1
        items: list[dict[str, Any]] = self.pods if kind == POD else []
        return ObjectList([*items], str(self.version))


async def test_a_kind_whose_lists_are_throttled_holds_up_no_other() -> None:
    """Each kind before it was listed anew every few seconds, those behind it never."""
    cluster, store = Cluster(), ObjectStore(lambda _: None)
    api, metrics = cast("ClusterApi", cluster), OperatorMetrics()
    resync = Resync(api, store, namespaces=(), metrics=metrics)
    assert await resync.list_all(REQUIRED) is None
    assert store.count(POD) == 1

    cluster.error, cluster.pods = ClusterError("GET: 429 Too many requests", status=429), []
    assert await resync.list_all(REQUIRED) is cluster.error
    assert store.count(POD) == 0  # its deletion was noticed, though pods are listed later


async def test_what_a_restored_store_has_not_goes_with_the_next_list() -> None:
    """Its list is newer than the last one, and older than what a watch has told since."""
    cluster, store = Cluster(), ObjectStore(lambda _: None)
    api, metrics = cast("ClusterApi", cluster), OperatorMetrics()
    resync = Resync(api, store, namespaces=(), metrics=metrics)
    assert await resync.list_all(REQUIRED) is None
    lost = {"namespace": "team", "name": "lost", "uid": "lost", "resourceVersion": "950"}
    store.seen(POD, {"metadata": lost})
    assert store.count(POD) == 2
    assert await resync.list_all(REQUIRED) is None
    assert store.get(POD, "team", "lost") is None


async def test_a_list_ends_where_nobody_answers() -> None:
    cluster, store = Cluster(), ObjectStore(lambda _: None)
    resync = Resync(cast("ClusterApi", cluster), store, namespaces=(), metrics=OperatorMetrics())
    cluster.error = UnreachableError("GET: no answer in 10 s")
    with pytest.raises(UnreachableError):
        await resync.list_all(REQUIRED)
    assert cluster.listed[-1] == BATCH_JOB.kind


def test_watches_that_end_again_and_again_bring_few_lists() -> None:
    """The first end is looked into at once: a kind may have gone."""

    async def main(clock: Callable[[], float]) -> list[float]:
        began_s, looks_s = clock(), []

        class Looks(Operator):
            async def _look(self) -> ClusterError | None:
                looks_s.append(clock() - began_s)
                return None

        settings = SimpleNamespace(resync_s=600.0)
        parts = SimpleNamespace(settings=settings, metrics=OperatorMetrics())
        operator = Looks(cast("Parts", parts))
        task = asyncio.create_task(operator._observe())
        for _ in range(150):
            await asyncio.sleep(2)
            operator.watches_ended()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return looks_s

    looks_s = run_virtual(main)
    assert looks_s[1] == pytest.approx(2, abs=0.1)
    assert 5 <= len(looks_s) <= 7


def test_everything_is_listed_again_soon_and_ever_more_seldom_while_a_kind_has_no_list() -> None:
    async def main(clock: Callable[[], float]) -> list[float]:
        began_s, looks_s = clock(), []

        class Looks(Operator):
            async def _look(self) -> ClusterError | None:
                looks_s.append(clock() - began_s)
                return ClusterError("GET: 429 storage is (re)initializing", status=429)

        settings = SimpleNamespace(resync_s=600.0)
        parts = SimpleNamespace(settings=settings, metrics=OperatorMetrics())
        task = asyncio.create_task(Looks(cast("Parts", parts))._observe())
        await asyncio.sleep(300)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return looks_s

    looks_s = run_virtual(main)
    pauses_s = [after - before for before, after in pairwise(looks_s)]
    assert pauses_s[0] <= 5
    assert pauses_s[1] > pauses_s[0]
    assert all(54 <= pause_s <= 60 for pause_s in pauses_s[4:])
    assert len(pauses_s) > 5
