"""The latency model between two starts of an engine: one file in the data folder.

It only warms the next model up, so a file that is lost, torn or another engine's costs nothing but
a few seconds of caution.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import structlog

from weir_agent.engine import Engine, EngineGoneError
from weir_engine.errors import ConfigError
from weir_engine.latency import models
from weir_engine.latency.features import EMPTY_SHAPE
from weir_engine.latency.models import LatencyModel

log = structlog.get_logger(__name__)

FILE_NAME = "latency_profile.json"
PERIOD_S = 60.0
MOST_TOKEN_S = 60.0
_ONE_TOKEN = (EMPTY_SHAPE.with_prefill(1, 0), EMPTY_SHAPE.with_decode(1))
_MANY_TOKENS = EMPTY_SHAPE.with_prefill(1 << 20, 1 << 20).with_decode(1 << 20)
# Whatever stands in the file, the engine starts: nobody would look for it there.
_UNUSABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RecursionError,
    ConfigError,
)


class KeptProfile:
    """The file. ``identity`` names the engine whose steps it has: version, arguments, device."""

    def __init__(self, folder: Path, *, identity: str) -> None:
        self._path = folder / FILE_NAME
        self._identity = identity
        self._writing = threading.Lock()  # one that was asked for may not have ended with its task

    def read(self, *, model: str) -> dict[str, Any] | None:
        """What was written for the same engine and latency model; None of nothing usable."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            if content["identity"] != self._identity:
                log.info("latency_profile.other_engine", path=str(self._path))
                return None
            profile = dict(content["profile"])
            if profile.get("model") != model:  # another preset had it: each plans with its own
                log.info("latency_profile.other_model", path=str(self._path))
                return None
            check_model(models.create(model, profile))
        except FileNotFoundError:
            return None
        except _UNUSABLE as error:
            log.warning("latency_profile.ignored", path=str(self._path), reason=str(error))
            return None
        log.info("latency_profile.taken_up", path=str(self._path))
        return profile

    def write(self, profile: Mapping[str, Any]) -> None:
        """Replaces the file as a whole.

        Raises:
            OSError: the disk does not take it; what was there stays.
        """
        part = self._path.with_suffix(".part")
        with self._writing:
            with part.open("w", encoding="utf-8") as file:
                json.dump({"identity": self._identity, "profile": dict(profile)}, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)

    async def save(self, engine: Engine) -> None:
        """Writes what the engine knows now; a disk or an engine that cannot is left in peace."""
        try:
            profile = await engine.latency_profile()
            if profile:
                await asyncio.to_thread(self.write, profile)
        except (OSError, TimeoutError, EngineGoneError) as error:
            log.warning("latency_profile.not_saved", reason=str(error))
        except Exception:  # a profile that cannot be had must not stop online traffic
            log.exception("latency_profile.fault")

    async def keep(self, engine: Engine) -> None:
        """Saves once a minute until it is cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.save(engine)


def check_model(model: LatencyModel) -> None:
    """No engine has these: a scheduler would plan nothing by them, or fail.

    Raises:
        ValueError: a step of one token takes a minute, or one of many for ever.
    """
    shortest_s = max(model.predict(shape) for shape in _ONE_TOKEN)
    if not (0 < shortest_s < MOST_TOKEN_S and isfinite(model.predict(_MANY_TOKENS))):
        raise ValueError(f"a step of one token takes {shortest_s} s")
