"""Creating a batch once, however often its client has to ask (§8.7)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.schemas import NewBatch, window_s
from weir_controlplane.batches.states import LIVE, Status
from weir_controlplane.errors import InvalidRequestError, NotFoundError, QuotaExceededError
from weir_controlplane.ids import new_id
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.models import Batch, File, Tenant
from weir_controlplane.store.tenancy import TenantScope

MAX_IDEMPOTENCY_KEY_CHARS = 255
_OF_WEIR = "weir.dev/"  # keys that nobody else may take


@dataclass(frozen=True, kw_only=True)
class CreateCall:
    """One call to create a batch. ``retry_count``: as the stock client marks its repeats.

    ``arrived_s`` is when, by the monotonic clock.
    """

    tenant_id: str
    body: NewBatch
    idempotency_key: str | None
    retry_count: int
    arrived_s: float


async def create_batch(services: Services, call: CreateCall) -> Batch:
    """The new batch, or the one that an earlier delivery of this call made.

    Raises:
        InvalidRequestError: a field is wrong, or the Idempotency-Key was used for another body.
        NotFoundError: the tenant has no such file.
        QuotaExceededError: the tenant has too many unfinished batches.
    """
    key = call.idempotency_key
    if key is not None and not 0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARS:
        raise InvalidRequestError(
            f"Idempotency-Key: must have 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters",
            param="Idempotency-Key",
        )
    if key is not None and key.startswith(_OF_WEIR):
        raise InvalidRequestError(
            f"Idempotency-Key: keys that begin with {_OF_WEIR} are those of BatchJobs",
            param="Idempotency-Key",
        )
    async with services.database.transaction() as session:
        # The tenant's row is the lock on its fingerprints, its keys and its quota.
        tenant = await lock_tenant(session, call.tenant_id)
        earlier = await _earlier(services, session, call)
        if earlier is not None:
            return earlier
        # A repeat is answered also where the window that it got then is not allowed any more.
        length_s = window_s(call.body.completion_window, services.settings)
        await check_quota(services, session, tenant)
        await _check_input(session, call)
        batch = await _insert(services, session, call, length_s)
    await services.nudge.send("batches")
    return batch


async def lock_tenant(session: AsyncSession, tenant_id: str) -> Tenant:
    """The tenant, locked against other creates until the transaction ends."""
    statement = select(Tenant).where(Tenant.id == tenant_id).with_for_update(key_share=True)
    return (await session.execute(statement)).scalar_one()


async def _earlier(services: Services, session: AsyncSession, call: CreateCall) -> Batch | None:
    if call.idempotency_key is not None:
        return await _by_key(session, call, call.idempotency_key)
    return await _by_retry(services, session, call)


async def _by_key(session: AsyncSession, call: CreateCall, key: str) -> Batch | None:
    statement = select(Batch).where(Batch.tenant_id == call.tenant_id, Batch.idempotency_key == key)
    batch = (await session.execute(statement)).scalar_one_or_none()
    if batch is not None and batch.fingerprint != call.body.fingerprint(call.tenant_id):
        raise InvalidRequestError(
            f"Idempotency-Key: it made {batch.id} from another body; send a new key",
            param="Idempotency-Key",
            code="idempotency_key_reused",
        )
    return batch


async def _by_retry(services: Services, session: AsyncSession, call: CreateCall) -> Batch | None:
    now_s = await clock_s(session)
    oldest_s = now_s - services.settings.create_retry_window_s
    arrived_s = now_s - (time.monotonic() - call.arrived_s)
    statement = (
        select(Batch)
        .where(
            Batch.tenant_id == call.tenant_id,
            Batch.fingerprint == call.body.fingerprint(call.tenant_id),
            Batch.created_at > oldest_s,
            Batch.seen_at.is_(None),
            Batch.idempotency_key.is_(None),
            or_(
                Batch.create_retry_count < call.retry_count,
                # A later repeat has overtaken this call: while it waited here, not before.
                and_(Batch.create_retry_count > call.retry_count, Batch.created_at > arrived_s),
            ),
        )
        .order_by(Batch.created_at, Batch.id)
    )
    for batch in (await session.execute(statement)).scalars():
        if call.retry_count not in batch.matched_retry_counts:
            batch.matched_retry_counts = [*batch.matched_retry_counts, call.retry_count]
            return batch
    return None


def key_of_job(uid: str) -> str:
    """The Idempotency-Key of a BatchJob's batch: there is one at most, whatever happens."""
    return f"{_OF_WEIR}batchjob/{uid}"


async def check_quota(services: Services, session: AsyncSession, tenant: Tenant) -> None:
    """Checks that the tenant, locked by the caller, may have one more batch.

    Raises:
        QuotaExceededError: it has too many unfinished ones.
    """
    allowed = tenant.max_batches or services.settings.tenant_max_batches
    statement = select(func.count()).where(Batch.tenant_id == tenant.id, Batch.status.in_(LIVE))
    if (await session.execute(statement)).scalar_one() >= allowed:
        raise QuotaExceededError(
            f"{allowed} batches of this tenant have not ended yet; wait for one or cancel one"
        )


async def _check_input(session: AsyncSession, call: CreateCall) -> None:
    try:
        scope = TenantScope(session, call.tenant_id)
        # Locked, as deletion and expiry lock it: a file is either taken or gone.
        file = await scope.get(File, call.body.input_file_id, lock=True)
    except NotFoundError as error:
        raise NotFoundError(f"input_file_id: {error.message}", param="input_file_id") from None
    if file.purpose != "batch":
        raise InvalidRequestError(
            f"input_file_id: its purpose is {file.purpose}; upload it with purpose batch",
            param="input_file_id",
            code="invalid_purpose",
        )


async def _insert(
    services: Services, session: AsyncSession, call: CreateCall, length_s: int
) -> Batch:
    now_s = await clock_s(session)
    batch = Batch(
        id=new_id("batch_"),
        tenant_id=call.tenant_id,
        input_file_id=call.body.input_file_id,
        endpoint=call.body.endpoint,
        completion_window=call.body.completion_window,
        labels=call.body.metadata,
        output_expires_s=call.body.output_expires_s or services.settings.output_expires_s,
        status=Status.VALIDATING,
        created_at=now_s,
        expires_at=now_s + length_s,
        idempotency_key=call.idempotency_key,
        fingerprint=call.body.fingerprint(call.tenant_id),
        create_retry_count=call.retry_count,
        matched_retry_counts=[],
    )
    session.add(batch)
    await session.flush()
    return batch
