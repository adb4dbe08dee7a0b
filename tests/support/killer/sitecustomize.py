"""Put on an agent's PYTHONPATH by a test: a prompt with the marker kills the engine that runs it.

A stand-in for a request that crashes real engines. It dies in the step that computes the prompt,
with whatever else is in that step, as a segmentation fault would. Nothing of Weir knows of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Sequence
from functools import wraps
from types import ModuleType
from typing import Any

MARKER = "KILL-THE-ENGINE"
TARGET = "vllm.v1.core.sched.scheduler"
TOKENS = list(MARKER.encode())  # the sample model's tokenizer has one token a byte


class _Loader(importlib.abc.Loader):
    def __init__(self, original: importlib.abc.Loader) -> None:
        self._original = original

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._original.exec_module(module)
        _arm(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _arm(module: ModuleType) -> None:
    scheduler = module.Scheduler
    add, update = scheduler.add_request, scheduler.update_from_output
    deadly: set[str] = set()

    @wraps(add)  # the bridge checks signatures
    def add_request(self: Any, request: Any) -> None:  # noqa: ANN401 - vLLM's own types
        tokens = list(request.prompt_token_ids or ())
        if any(tokens[i : i + len(TOKENS)] == TOKENS for i in range(len(tokens))):
            deadly.add(request.request_id)
        add(self, request)

    @wraps(update)
    def update_from_output(self: Any, scheduler_output: Any, *rest: Any) -> Any:  # noqa: ANN401
        if deadly & scheduler_output.num_scheduled_tokens.keys():
            os.kill(os.getpid(), signal.SIGKILL)
        return update(self, scheduler_output, *rest)

    scheduler.add_request = add_request
    scheduler.update_from_output = update_from_output


sys.meta_path.insert(0, _Finder())
