"""One vLLM engine with two applications: online over HTTP, offline called in this process only.

Bodies, errors and chat templates are vLLM's own in both; Weir adds who may say what class a
request has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import vllm
from fastapi import FastAPI
from vllm import envs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.openai.chat_completion.api_router import attach_router as attach_chat
from vllm.entrypoints.openai.completion.api_router import attach_router as attach_completion
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import uses_fast_detokenizer
from vllm.v1.engine.exceptions import EngineDeadError

from weir_agent.asgi_call import AsgiApp, post
from weir_agent.engine import (
    EngineBusyError,
    EngineGoneError,
    EngineStartError,
    LineOutcome,
    OfflineLine,
    PolicyRefusedError,
    ServedModel,
)
from weir_agent.http import KeyGuard
from weir_agent.settings import AgentSettings, SettingsError
from weir_agent.vllm_bridge import item_bounds
from weir_agent.vllm_bridge.environment import start_engine_by_fork
from weir_agent.vllm_bridge.facade import CURRENT, OfflineView, OnlineView, Submission
from weir_agent.vllm_bridge.final_text import FinalText
from weir_agent.vllm_bridge.grammar_check import GrammarCheck
from weir_agent.vllm_bridge.messages import LATENCY_PROFILE
from weir_agent.vllm_bridge.render_turn import RenderTurn
from weir_agent.vllm_bridge.start_failure import StartFailure
from weir_agent.vllm_bridge.version import UnsupportedEngineError, check_config, check_version

UTILITY_TIMEOUT_S = 2.0
BUSY_STATUS = frozenset({429, 503})


@dataclass(slots=True)
class _ServerFlag:
    """What vLLM's error handlers set when the engine is dead; the agent watches the engine."""

    should_exit: bool = False


class VllmEngine:
    """A running vLLM engine; ``app`` is the online application."""

    def __init__(
        self,
        llm: Any,
        *,
        identity: str,
        app: AsgiApp,
        offline_app: AsgiApp,
        models: tuple[ServedModel, ...],
    ) -> None:
        self._llm = llm
        self.identity = identity
        self.app = app
        self._offline_app = offline_app
        self._models = models
        self._rendering = asyncio.Lock()

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The served names, each with the model's own length."""
        return self._models

    @property
    def dead(self) -> bool:
        """True once the engine's process has ended."""
        return bool(self._llm.errored)

    @property
    def pids(self) -> tuple[int, ...]:
        """The engine's processes."""
        manager = self._llm.engine_core.resources.engine_manager
        return tuple(process.pid for process in manager.processes) if manager else ()

    async def execute(self, line: OfflineLine) -> LineOutcome:
        """The answer of the offline application to the line.

        Raises:
            EngineGoneError: the engine is dead, or ending.
            EngineBusyError: vLLM's admission refused it for now.
        """
        turn = RenderTurn(self._rendering)
        submission = Submission(line=line, turn=turn)
        async with turn:
            if self.dead:
                raise EngineGoneError("the engine is dead")
            token = CURRENT.set(submission)
            try:
                response = await post(
                    self._offline_app,
                    line.url,
                    body=json.dumps(line.body).encode(),
                    headers={"x-request-id": line.request_id},
                )
            finally:
                CURRENT.reset(token)
        if response.status_code >= 500 and self.dead:
            raise EngineGoneError("the engine died while it held the line")
        if submission.aborted:  # vLLM says 200 to what it cuts off when it is asked to end
            raise EngineGoneError("the engine was ended while it held the line")
        if submission.refused is not None:  # of which vLLM says "Internal server error"
            return LineOutcome(status_code=400, body=_refusal(submission.refused))
        if response.status_code in BUSY_STATUS:
            raise EngineBusyError(f"vLLM answered {response.status_code}")
        return LineOutcome(
            status_code=response.status_code,
            body=json.loads(response.body),
            cached_tokens=submission.cached_tokens,
            cut=submission.cut,
        )

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Hands the policy to the scheduler.

        Raises:
            TimeoutError: the engine did not answer within two seconds.
            EngineGoneError: the engine is dead.
            PolicyRefusedError: the policy is not valid.
        """
        answer = await self._utility("weir_set_policy", dict(policy))
        if not answer["accepted"]:
            raise PolicyRefusedError(answer["error"])

    async def telemetry(self) -> Mapping[str, Any]:
        """Aggregates of the scheduler, once the engine answers.

        Raises:
            EngineGoneError: the engine is dead.
        """
        return dict(await self._utility("weir_telemetry", within_s=None))

    async def latency_profile(self) -> Mapping[str, Any]:
        """The scheduler's latency model.

        Raises:
            TimeoutError: the engine did not answer within two seconds.
            EngineGoneError: the engine is dead.
        """
        return dict(await self._utility(LATENCY_PROFILE))

    async def _utility(
        self, name: str, *arguments: Any, within_s: float | None = UTILITY_TIMEOUT_S
    ) -> Any:
        if self.dead:
            raise EngineGoneError("the engine is dead")
        try:
            async with asyncio.timeout(within_s):
                return await self._llm.engine_core.call_utility_async(name, *arguments)
        except EngineDeadError:
            raise EngineGoneError("the engine is dead") from None

    def kill(self) -> None:
        """Ends the engine's processes at once: for an engine that hangs."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def stop(self, *, within_s: float) -> None:
        """Ends the engine's processes and frees what they hold; nobody waits for an answer now."""
        reader = self._llm.output_handler
        if reader is not None:  # it would log the end of its engine, stack and all, as a death
            reader.cancel()
        await asyncio.to_thread(self._llm.shutdown, within_s)


def _refusal(reason: str) -> dict[str, Any]:
    """The body of a 400 answer, as vLLM words one."""
    error = {"message": reason, "type": "BadRequestError", "param": None, "code": 400}
    return {"error": error}


async def start(args: Any, settings: AgentSettings, *, identity: str) -> VllmEngine:
    """A running engine and its applications; blocks the loop while the engine starts.

    ``identity`` names what its steps cost on: vLLM fills ``args`` in, so it is of before.

    Raises:
        SettingsError: this vLLM, or this configuration of it, cannot run under Weir.
        EngineStartError: the engine's process ended before it was ready; the message says why.
    """
    try:
        check_version(vllm.__version__)
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
            usage_context=UsageContext.OPENAI_API_SERVER
        )
        check_config(config)
        item_bounds.install()
    except (UnsupportedEngineError, ValueError, OSError) as error:
        raise SettingsError(f"engine_args: {error} (set WEIR_ENGINE_ARGS)") from error
    start_engine_by_fork()
    with StartFailure() as failure:
        try:
            llm = AsyncLLM.from_vllm_config(
                vllm_config=config,
                usage_context=UsageContext.OPENAI_API_SERVER,
                enable_log_requests=args.enable_log_requests,
                disable_log_stats=args.disable_log_stats,
            )
        except RuntimeError as error:
            reason = failure.reason() or f"{error} Its log says why."
            raise EngineStartError(
                f"engine_args: the engine did not start: {reason} (see WEIR_ENGINE_ARGS)"
            ) from error
    try:
        return await _with_applications(llm, args, settings, identity)
    except BaseException:
        llm.shutdown(0)
        raise


async def _with_applications(
    llm: Any, args: Any, settings: AgentSettings, identity: str
) -> VllmEngine:
    await llm.reset_mm_cache()
    tasks = await llm.get_supported_tasks()
    online = build_app(args, tasks, llm.model_config)
    await init_app_state(OnlineView(llm), online.state, args, tasks)
    offline = _offline_application()
    offline_view = OfflineView(
        llm,
        FinalText(_fast_tokenizer(llm.tokenizer)),
        GrammarCheck(partial(_validate, llm), turn_s=settings.grammar_timeout_s),
    )
    await init_app_state(offline_view, offline.state, args, tasks)
    online.state.server = offline.state.server = _ServerFlag()
    names = args.served_model_name or [args.model]
    models = tuple(
        ServedModel(
            name=name,
            revision=settings.model_revision,
            max_model_len_tokens=llm.model_config.max_model_len,
        )
        for name in names
    )
    return VllmEngine(
        llm, identity=identity, app=_guarded(online, args), offline_app=offline, models=models
    )


def _validate(llm: Any, params: Any) -> None:
    """What vLLM does with the parameters of a request before it takes it in.

    Raises:
        ValueError: they are not valid.
    """
    outputs_config = llm.vllm_config.structured_outputs_config
    params.verify(llm.model_config, None, outputs_config, llm.tokenizer)


def _fast_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer of Hugging Face's library behind vLLM's; None where vLLM has another kind."""
    return tokenizer._tokenizer if uses_fast_detokenizer(tokenizer) else None  # noqa: SLF001 - as vLLM does


def _guarded(online: Any, args: Any) -> AsgiApp:
    """The application behind vLLM's keys: by itself it leaves /invocations and others open."""
    keys = [key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]
    return KeyGuard(online, keys=keys) if keys else online


def _offline_application() -> Any:
    """Only the endpoints that batches may name, with vLLM's handlers of errors."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    attach_chat(app)
    attach_completion(app)
    init_exception_handler(app)
    return app
