"""Puts the agent's parts together out of its settings. Nothing is started here."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from random import Random

import httpx
import structlog
import uvicorn
from typing_extensions import override

from weir_agent.asgi_call import AsgiApp
from weir_agent.chunks.bodies import BodyBounds
from weir_agent.chunks.delivery import Deliverer
from weir_agent.chunks.feeder import Feeder
from weir_agent.chunks.lines import LineRunner
from weir_agent.chunks.pool import ChunkOrderPool
from weir_agent.chunks.spool import Spool
from weir_agent.chunks.work import ChunkWork, WorkLimits, WorkParts
from weir_agent.control_plane import ControlPlane, HttpControlPlane, TokenFileAuth
from weir_agent.engine import Engine
from weir_agent.heads import BoundedHeads
from weir_agent.journal import CrashJournal
from weir_agent.kept_profile import KeptProfile
from weir_agent.metrics import AgentMetrics
from weir_agent.pulse import EnginePulse
from weir_agent.settings import AgentSettings
from weir_agent.sync import SyncLoop, SyncParts

log = structlog.get_logger(__name__)


class Server(uvicorn.Server):
    """Uvicorn that leaves signals alone: the agent decides what one means."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def build_server(app: AsgiApp, settings: AgentSettings) -> Server:
    """The HTTP server of an application; asked to exit, it waits for running requests."""
    return Server(
        uvicorn.Config(
            app,
            http=BoundedHeads,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        )
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stores:
    """What the agent keeps on disk, and its metrics."""

    metrics: AgentMetrics
    journal: CrashJournal
    profile: KeptProfile
    spool: Spool


def build_stores(settings: AgentSettings, engine: Engine) -> Stores:
    """Journal, latency profile and spool in the data folder."""
    return Stores(
        metrics=AgentMetrics(),
        journal=CrashJournal(settings.data_dir),
        profile=KeptProfile(settings.data_dir, identity=engine.identity),
        spool=Spool(
            settings.data_dir / "chunks",
            max_bytes=settings.spool_max_bytes,
            result_max_bytes=settings.result_max_bytes,
        ),
    )


@contextlib.asynccontextmanager
async def open_control_plane(settings: AgentSettings) -> AsyncIterator[ControlPlane | None]:
    """The control plane over HTTP; None when none is set."""
    if settings.control_plane_url is None:
        log.info("agent.online_only", reason="no control plane is set")
        yield None
        return
    key = settings.control_plane_key
    token_file = settings.control_plane_token_file
    headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    async with httpx.AsyncClient(
        base_url=settings.control_plane_url.rstrip("/"),
        headers=headers,
        auth=None if token_file is None else TokenFileAuth(token_file),
        timeout=settings.transfer_timeout_s,
    ) as client:
        yield HttpControlPlane(
            client, agent_id=settings.agent_id, sync_timeout_s=settings.sync_timeout_s
        )


def build_work(
    settings: AgentSettings, engine: Engine, control_plane: ControlPlane, stores: Stores
) -> tuple[ChunkWork, Feeder]:
    """The leased work of an agent that has a control plane, and what feeds it to the engine."""
    random = Random()  # noqa: S311 - jitter
    lines = LineRunner(
        engine,
        bounds=BodyBounds(
            max_choices=settings.max_choices,
            max_logprobs=settings.max_logprobs,
            max_output_tokens=settings.max_output_tokens,
            max_grammar_bytes=settings.max_grammar_bytes,
            max_words=settings.max_words,
            max_list_tokens=settings.max_list_tokens,
            max_parts=settings.max_parts,
            max_prompt_tokens=max(model.max_model_len_tokens for model in engine.models),
            result_max_bytes=settings.result_max_bytes,
        ),
        salt_key=secrets.token_bytes(32),
        random=random,
    )
    deliverer = Deliverer(
        control_plane,
        random=random,
        counted=lambda answer: stores.metrics.commits.labels(answer).inc(),
    )
    parts = WorkParts(
        control_plane=control_plane,
        spool=stores.spool,
        journal=stores.journal,
        lines=lines,
        deliverer=deliverer,
        pool=ChunkOrderPool(),
        metrics=stores.metrics,
        random=random,
    )
    work = ChunkWork(
        parts,
        WorkLimits(
            max_held_lines=settings.max_held_lines, max_held_tokens=settings.max_held_tokens
        ),
    )
    return work, Feeder(work, parts, lines_per_s=settings.lookahead_lines_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class OfflineSide:
    """What exists only beside a control plane."""

    work: ChunkWork
    feeder: Feeder
    sync: SyncLoop


def build_offline_side(
    settings: AgentSettings,
    engine: Engine,
    control_plane: ControlPlane,
    *,
    stores: Stores,
    pulse: EnginePulse,
) -> OfflineSide:
    """Work and sync of an agent that has a control plane."""
    work, feeder = build_work(settings, engine, control_plane, stores)
    sync = SyncLoop(
        SyncParts(
            control_plane=control_plane,
            work=work,
            journal=stores.journal,
            metrics=stores.metrics,
            service=settings.service,
            models=engine.models,
            telemetry=pulse.telemetry,
            on_policy=pulse.on_policy,
            random=Random(),  # noqa: S311 - jitter
        )
    )
    return OfflineSide(work=work, feeder=feeder, sync=sync)
