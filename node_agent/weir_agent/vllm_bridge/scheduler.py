"""The scheduler class that vLLM runs: Weir plans each step, vLLM executes exactly that.

``make_scheduler`` is what ``--scheduler-cls`` names. The mixin only carries vLLM's calls to
``StepDriver`` and back; decisions are ``weir_engine``'s, bookkeeping is the driver's.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from typing_extensions import override
from vllm import __version__
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec

from weir_agent.vllm_bridge import item_bounds, seeds, shapes, wiring
from weir_agent.vllm_bridge.base import VllmScheduler
from weir_agent.vllm_bridge.driver import StepDriver
from weir_agent.vllm_bridge.messages import read_settings
from weir_agent.vllm_bridge.planner import PlannerFactory, build_planner
from weir_agent.vllm_bridge.version import check_config, check_kv_groups, check_version


class WeirMixin(VllmScheduler):
    """vLLM's scheduler with its choices made by a plan.

    The driver is attached right after construction, before the first request.
    """

    weir: StepDriver

    @override
    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule what the plan says, and nothing else."""
        driver = self.weir
        driver.before_schedule()
        output = super().schedule(*args, **kwargs)
        driver.after_schedule(output)
        return output

    @override
    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """Asked for between a step's launch and its sampling."""
        self.weir.after_launch(scheduler_output)
        return super().get_grammar_bitmask(scheduler_output)

    @override
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Process a step's tokens, then tell the planner what became of it."""
        driver = self.weir
        driver.before_update(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        driver.after_update(outputs)
        return outputs

    @override
    def add_request(self, request: Any) -> None:
        """Take a request in, in the class that the agent gave it."""
        known = request.request_id in self.requests
        if not known:
            self.weir.comings.before_add(request)
        super().add_request(request)
        if not known:
            self.weir.comings.after_add(request)

    @override
    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: Any
    ) -> list[Any]:
        """End requests from outside; None ends all."""
        if request_ids is None:
            request_ids = list(self.requests)
        ended = super().finish_requests(request_ids, finished_status)
        self.weir.comings.after_finish(ended)
        return ended

    @override
    def get_num_unfinished_requests(self) -> int:
        """Requests that may need a step now: none while nothing can be planned."""
        return 0 if self.weir.parking.parked else super().get_num_unfinished_requests()

    @override
    def set_pause_state(self, pause_state: Any) -> None:
        """Pause or resume."""
        super().set_pause_state(pause_state)
        self.weir.unpark()

    @override
    def reset_prefix_cache(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
    ) -> bool:
        """Forget all cached prefixes."""
        done = super().reset_prefix_cache(reset_running_requests, reset_connector)
        self.weir.comings.after_cache_reset(done=done)
        return done

    @override
    def make_stats(self, *parts: Any, **more: Any) -> Any:
        """Levels and sums for vLLM's metrics; None while they are not due."""
        given = [*parts, *more.values()]
        of_step = given.count(None) < len(given)  # it is kept nowhere else
        if of_step or self.weir.stats_pace.due(running=bool(self.running)):
            return super().make_stats(*parts, **more)
        return None

    @override
    def shutdown(self) -> None:
        """Stop."""
        self.weir.close()
        super().shutdown()

    @override
    def _free_request_blocks(self, request: Any) -> None:
        super()._free_request_blocks(request)
        self.weir.comings.after_free(request)

    @override
    def _get_local_prefix_cache_hit(self, request: Any) -> tuple[Any, int, int, bool]:
        found = super()._get_local_prefix_cache_hit(request)
        return self.weir.step.planned_hit(request, found)

    @override
    def _reserve_prefill_lookahead(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        tokens = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return min(tokens, self.weir.step.tokens.get(request.request_id, 0))


class WeirScheduler(WeirMixin, Scheduler):  # type: ignore[misc]  # vLLM is not analysed
    """Weir over vLLM's synchronous scheduler."""


class WeirAsyncScheduler(WeirMixin, AsyncScheduler):  # type: ignore[misc]  # vLLM is not analysed
    """Weir over vLLM's asynchronous scheduler: two steps in flight."""


def make_scheduler(**kwargs: Any) -> WeirMixin:
    """The scheduler for an engine, from ``additional_config["weir"]``; vLLM calls it.

    Raises:
        UnsupportedEngineError: this vLLM or this configuration cannot run under Weir.
        ConfigError: a setting is not valid; the message names the field.
    """
    graph_tokens = shapes.graph_tokens(kwargs["vllm_config"].compilation_config)
    return build(partial(build_planner, graph_tokens=graph_tokens), **kwargs)


def build(
    planner_factory: PlannerFactory,
    *,
    clock: Callable[[], float] = time.monotonic,
    **kwargs: Any,
) -> WeirMixin:
    """A scheduler around another planner; ``kwargs`` are vLLM's.

    Raises:
        UnsupportedEngineError: this vLLM or this configuration cannot run under Weir.
        ConfigError: a setting is not valid; the message names the field.
    """
    config = kwargs["vllm_config"]
    check_version(__version__)
    shapes.check_classes()
    check_config(config)
    check_kv_groups(kwargs["kv_cache_config"].kv_cache_groups, full_attention=FullAttentionSpec)
    settings = read_settings(config.additional_config)
    asynchronous = bool(config.scheduler_config.async_scheduling)
    scheduler: WeirMixin = (WeirAsyncScheduler if asynchronous else WeirScheduler)(**kwargs)
    shapes.check_scheduler(scheduler)
    scheduler.weir = StepDriver(
        scheduler,
        settings=settings,
        planner_factory=planner_factory,
        asynchronous=asynchronous,
        clock=clock,
    )
    wiring.install()
    item_bounds.install()
    if current_platform.is_cpu():
        seeds.install()
    return scheduler
