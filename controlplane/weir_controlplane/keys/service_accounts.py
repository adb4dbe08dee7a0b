"""What the bearer of a ServiceAccount token may be: the operator, or an agent as itself.

Any pod of a namespace can have a token: only pods that the operator registered are agents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import select

from weir_controlplane.errors import PermissionDeniedError
from weir_controlplane.keys.authenticator import Principal
from weir_controlplane.keys.token_review import Bearer, TokenReviewer
from weir_controlplane.store.database import Database
from weir_controlplane.store.kubernetes_models import LlmService, ServicePod

MISS_EVERY_S = 1.0  # how often an unknown pod may make us look into the database


@dataclass(frozen=True, kw_only=True, slots=True)
class PodEntry:
    """A registered pod. ``service``: namespace/name of its LLMService."""

    service: str
    namespace: str
    name: str
    service_account: str

    @property
    def agent_id(self) -> str:
        """The only agent that it may be."""
        return agent_id_of(self.namespace, self.name)


def agent_id_of(namespace: str, pod_name: str) -> str:
    """The agent of a pod; without ambiguity, since namespaces hold no dots."""
    return f"{namespace}.{pod_name}"


class PodDirectory:
    """The registered pods, as this replica last read them."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._pods: Mapping[str, PodEntry] = {}
        self._clock_s = clock_s
        self._read_at_s = float("-inf")
        self._reading = asyncio.Lock()

    async def read(self, database: Database) -> None:
        """Reads every registered pod."""
        started_s = self._clock_s()
        async with database.read() as session:
            rows = await session.execute(
                select(
                    ServicePod.uid,
                    ServicePod.name,
                    LlmService.id,
                    LlmService.namespace,
                    LlmService.service_account,
                ).join(LlmService, LlmService.id == ServicePod.service)
            )
            found = {
                row.uid: PodEntry(
                    service=row.id,
                    namespace=row.namespace,
                    name=row.name,
                    service_account=row.service_account,
                )
                for row in rows
            }
        # One that began earlier may end later, and still show a pod that has been removed since.
        if started_s >= self._read_at_s:
            self._pods, self._read_at_s = found, started_s

    async def find(self, database: Database, uid: str) -> PodEntry | None:
        """The pod with this uid; one that is not known is looked for, now and then."""
        if uid not in self._pods:
            async with self._reading:
                if self._clock_s() - self._read_at_s >= MISS_EVERY_S:
                    await self.read(database)
        return self._pods.get(uid)


class ServiceAccounts:
    """Turns tokens into principals.

    Args:
        operator: the operator's ServiceAccount, as namespace/name; None: no token is the operator.
    """

    def __init__(
        self, reviewer: TokenReviewer, pods: PodDirectory, *, operator: str | None
    ) -> None:
        self._reviewer = reviewer
        self._pods = pods
        self._operator = operator

    async def principal(self, database: Database, token: str) -> Principal | None:
        """Who bears the token; None: it is not genuine, expired, or not made for us.

        Raises:
            OverloadedError: nobody can say now.
            PermissionDeniedError: genuine, but neither the operator nor a registered pod.
        """
        bearer = await self._reviewer.bearer(token)
        if bearer is None:
            return None
        account = f"{bearer.namespace}/{bearer.service_account}"
        if account == self._operator:
            return Principal(key_id=account, scope="operator", tenant_id=None, agent_id=None)
        pod = await self._registered(database, bearer)
        return Principal(
            key_id=f"pod/{bearer.pod_uid}",
            scope="agent",
            tenant_id=None,
            agent_id=pod.agent_id,
            service=pod.service,
        )

    async def close(self) -> None:
        """Closes the connections to the API server."""
        await self._reviewer.close()

    async def _registered(self, database: Database, bearer: Bearer) -> PodEntry:
        pod = None
        if bearer.pod_uid is not None:
            pod = await self._pods.find(database, bearer.pod_uid)
        wanted = (bearer.namespace, bearer.service_account, bearer.pod_name)
        if pod is None or (pod.namespace, pod.service_account, pod.name) != wanted:
            raise PermissionDeniedError(
                "this pod is not one that the operator registered for an LLMService (yet)",
                code="pod_not_registered",
            )
        return pod
