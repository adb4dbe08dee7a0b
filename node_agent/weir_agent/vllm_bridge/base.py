# ruff: noqa: D102, FBT001, FBT002 - a listing of vLLM's own signatures
"""What the bridge uses of vLLM's scheduler: the names that its mixin may touch, typed.

``shapes`` checks the same names at start. Nothing here runs.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class VllmScheduler:
        """The part of ``vllm.v1.core.sched.scheduler.Scheduler`` that the bridge relies on."""

        vllm_config: Any
        scheduler_config: Any
        kv_cache_manager: Any
        structured_output_manager: Any
        requests: dict[str, Any]
        running: list[Any]
        waiting: Any
        deferred_waiting: set[Any]
        grammar_compile_error_reqs: set[str]
        current_step: int
        max_model_len: int
        max_num_running_reqs: int
        max_num_active_reqs: int
        max_num_scheduled_tokens: int
        scheduler_reserve_full_isl: bool
        block_size: int
        _pause_state: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def schedule(self, throttle_prefills: bool = False) -> Any: ...
        def get_grammar_bitmask(self, scheduler_output: Any) -> Any: ...
        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any: ...
        def add_request(self, request: Any) -> None: ...
        def finish_requests(
            self, request_ids: str | Iterable[str] | None, finished_status: Any
        ) -> list[Any]: ...
        def get_num_unfinished_requests(self) -> int: ...
        def set_pause_state(self, pause_state: Any) -> None: ...
        def reset_prefix_cache(
            self,
            reset_running_requests: bool = False,
            reset_connector: bool = False,
        ) -> bool: ...
        def make_stats(self, *parts: Any, **more: Any) -> Any: ...
        def shutdown(self) -> None: ...
        def _preempt_request(
            self,
            request: Any,
            timestamp: float,
            drop_stale_output: bool = False,
        ) -> None: ...
        def _free_request_blocks(self, request: Any) -> None: ...
        def _handle_blocked_waiting_request(self, request: Any) -> bool: ...
        def _get_local_prefix_cache_hit(self, request: Any) -> tuple[Any, int, int, bool]: ...
        def _reserve_prefill_lookahead(
            self, request: Any, num_computed_tokens: int, num_new_tokens: int
        ) -> int: ...

else:
    VllmScheduler = object
