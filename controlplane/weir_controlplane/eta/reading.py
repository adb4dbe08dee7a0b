"""What the predictions are made from, read in a few grouped queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.failing import count_stuck
from weir_controlplane.batchjobs import failing as jobs_failing
from weir_controlplane.dispatch.queue_reader import RUNNING
from weir_controlplane.store.fleet_models import Agent, Incarnation
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch, Chunk, ChunkResult

RATE_WINDOW_S = 900.0
MIN_SPAN_S = 10.0  # a rate over less says nothing

# Lines of a chunk are taken for equally long: a partial commit counts by its lines.
_done_tokens = Chunk.tokens * 1.0 * Chunk.lines_done / Chunk.lines


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is left and what was done, by batch; committed tokens a second by model and service.

    ``failing``: batches whose validation or end fails again and again, by stage; and BatchJobs that
    get no batch.
    """

    remaining_tokens: dict[str, float]
    committed_at: dict[str, float]
    deadline_at: dict[str, float]
    rates: dict[tuple[str, str], float]
    failing: Mapping[str, int]


async def read_work(session: AsyncSession, batch_ids: Collection[str], now_s: float) -> Work:
    """The work of these running batches, and how fast pods committed lines of each model."""
    wanted = frozenset(batch_ids)
    running = select(Batch.id).where(RUNNING)
    left = await session.execute(
        select(
            Chunk.batch_id,
            func.sum(
                case((Chunk.state == "leased", Chunk.tokens - _done_tokens), else_=Chunk.tokens)
            ),
        )
        .where(Chunk.batch_id.in_(running), Chunk.state.in_(("open", "leased")))
        .group_by(Chunk.batch_id)
    )
    last = await session.execute(
        select(ChunkResult.batch_id, func.max(ChunkResult.committed_at))
        .where(ChunkResult.batch_id.in_(running))
        .group_by(ChunkResult.batch_id)
    )
    deadlines = await session.execute(
        select(BatchJob.batch_id, BatchJob.deadline_at).where(
            BatchJob.batch_id.in_(running), BatchJob.deadline_at.is_not(None)
        )
    )
    return Work(
        remaining_tokens={key: float(tokens or 0.0) for key, tokens in left if key in wanted},
        committed_at={key: float(at) for key, at in last if key in wanted},
        deadline_at={str(key): at for key, at in deadlines if at is not None and key in wanted},
        rates=await _rates(session, now_s),
        failing={
            **await count_stuck(session),
            jobs_failing.STAGE: await jobs_failing.count_stuck_jobs(session),
        },
    )


async def _rates(session: AsyncSession, now_s: float) -> dict[tuple[str, str], float]:
    """Estimated tokens a second of committed lines, over the last quarter of an hour.

    By model and the service whose pods ran them.
    """
    since = now_s - RATE_WINDOW_S
    # Of a chunk that was begun before, the rest was done then.
    taken_s = ChunkResult.committed_at - Chunk.leased_at
    share = case((Chunk.leased_at < since, (ChunkResult.committed_at - since) / taken_s), else_=1.0)
    rows = await session.execute(
        select(
            Batch.model,
            Agent.service,
            func.sum(_done_tokens * share),
            func.min(Chunk.leased_at),
            func.max(ChunkResult.committed_at),
        )
        .select_from(ChunkResult)
        .join(Chunk, Chunk.id == ChunkResult.chunk_id)
        .join(Batch, Batch.id == ChunkResult.batch_id)
        .join(Incarnation, Incarnation.id == Chunk.leased_by)
        .join(Agent, Agent.agent_id == Incarnation.agent_id)
        .where(ChunkResult.committed_at > since)
        .group_by(Batch.model, Agent.service)
    )
    return {
        # To the last commit, not to now: pods that have nothing to do are not slow.
        (model, service): float(tokens or 0.0) / max(MIN_SPAN_S, ended - max(since, begun or since))
        for model, service, tokens, begun, ended in rows
        if model is not None
    }
