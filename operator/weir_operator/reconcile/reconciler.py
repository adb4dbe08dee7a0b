"""One reconcile: observe, plan, execute."""

from __future__ import annotations

import time

import structlog

from weir_operator.cluster.errors import ClusterError
from weir_operator.leader.elector import NotLeaderError
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.batchjob import plan_batchjob
from weir_operator.planning.kinds import LLM_SERVICE
from weir_operator.planning.llmservice import plan_llmservice
from weir_operator.planning.types import Manifest, ObjectKey, Plan
from weir_operator.reconcile.execute import Executor
from weir_operator.reconcile.observe import Observer
from weir_operator.workqueue import RetryError

log = structlog.get_logger(__name__)


class Reconciler:
    """The queue's work."""

    def __init__(self, observer: Observer, executor: Executor, *, metrics: OperatorMetrics) -> None:
        self._observer = observer
        self._executor = executor
        self._metrics = metrics

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Brings one object to its plan; after how many seconds to look again.

        Raises:
            RetryError: repeat it with backoff.
        """
        started_s = time.perf_counter()
        outcome = "failed"
        try:
            delay_s = await self._reconcile(key)
            outcome = "done"
        except ClusterError as error:
            raise RetryError(str(error)) from error
        except NotLeaderError as error:
            outcome = "not_leader"
            raise RetryError(str(error)) from error
        finally:
            self._metrics.reconciles.labels(key.kind, outcome).inc()
            self._metrics.reconcile_seconds.labels(key.kind).observe(
                time.perf_counter() - started_s
            )
        return delay_s

    async def _reconcile(self, key: ObjectKey) -> float | None:
        planned = await self._plan(key)
        if planned is None:
            self._executor.forget(key)
            return None
        owner, plan = planned
        return await self._executor.execute(key, owner, plan)

    async def _plan(self, key: ObjectKey) -> tuple[Manifest, Plan] | None:
        """The object and its plan; None when there is no such object (any more)."""
        if key.kind == LLM_SERVICE.kind:
            service = self._observer.llmservice(key)
            return None if service is None else (service.service, plan_llmservice(service))
        job = await self._observer.batchjob(key)
        return None if job is None else (job.job, plan_batchjob(job))
