"""Utility methods of the engine process: policy in, telemetry out.

Added to ``EngineCore`` by the module that ``scheduler_cls`` names, so engines that run without Weir
are not touched. The agent calls them by ``call_utility_async``; arguments and answers are plain.
"""

from typing import Any

from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCore

from weir_agent.vllm_bridge.messages import (
    LATENCY_PROFILE,
    SET_POLICY,
    TELEMETRY,
    read_policy,
)
from weir_engine.errors import ConfigError

_installed = False


def install() -> None:
    """Add the methods to ``EngineCore``; a second call does nothing."""
    global _installed  # noqa: PLW0603 - once a process
    if _installed:
        return
    _installed = True
    add_request = EngineCore.add_request

    def add_request_and_attach(self: Any, request: Any, request_wave: int = 0) -> None:
        # The first moment at which the scheduler can learn how to wake the loop that runs it.
        driver = getattr(self.scheduler, "weir", None)
        if driver is not None and not driver.parking.has_waker:
            input_queue = getattr(self, "input_queue", None)
            if input_queue is not None:
                wake_up = (EngineCoreRequestType.WAKEUP, None)
                driver.parking.use(lambda: input_queue.put_nowait(wake_up))
        add_request(self, request, request_wave)

    EngineCore.add_request = add_request_and_attach
    setattr(EngineCore, SET_POLICY, _set_policy)
    setattr(EngineCore, TELEMETRY, _telemetry)
    setattr(EngineCore, LATENCY_PROFILE, _latency_profile)


def _set_policy(self: Any, message: Any) -> dict[str, Any]:
    driver = self.scheduler.weir
    try:
        policy = read_policy(message).policy(driver.now_s())
    except ConfigError as error:
        return {"accepted": False, "error": str(error)}
    driver.set_policy(policy)
    return {"accepted": True}


def _telemetry(self: Any) -> dict[str, Any]:
    report: dict[str, Any] = self.scheduler.weir.telemetry()
    return report


def _latency_profile(self: Any) -> dict[str, Any]:
    profile: dict[str, Any] = self.scheduler.weir.latency_profile()
    return profile
