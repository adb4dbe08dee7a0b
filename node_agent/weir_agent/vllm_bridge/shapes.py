"""The shapes of vLLM 0.32 that the bridge relies on, held against the installed vLLM.

``version`` has the checks themselves.
"""

from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequestType
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from weir_agent.vllm_bridge.bundles import OUTPUT_FIELDS
from weir_agent.vllm_bridge.queue import ClassedBlockQueue
from weir_agent.vllm_bridge.version import check_attributes, check_shapes

_SCHEDULER = {
    "schedule": ("self", "throttle_prefills"),
    "get_grammar_bitmask": ("self", "scheduler_output"),
    "update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "add_request": ("self", "request"),
    "finish_requests": ("self", "request_ids", "finished_status"),
    "get_num_unfinished_requests": ("self",),
    "set_pause_state": ("self", "pause_state"),
    "reset_prefix_cache": ("self", "reset_running_requests", "reset_connector"),
    "make_stats": (
        "self",
        "spec_decoding_stats",
        "kv_connector_stats",
        "cudagraph_stats",
        "perf_stats",
        "ec_connector_stats",
    ),
    "shutdown": ("self",),
    "_preempt_request": ("self", "request", "timestamp", "drop_stale_output"),
    "_free_request_blocks": ("self", "request"),
    "_handle_blocked_waiting_request": ("self", "request"),
    "_get_local_prefix_cache_hit": ("self", "request"),
    "_reserve_prefill_lookahead": (
        "self",
        "request",
        "num_computed_tokens",
        "num_new_tokens",
    ),
}

_POOL = {
    "cache_full_blocks": (
        "self",
        "request",
        "blocks",
        "num_cached_blocks",
        "num_full_blocks",
        "block_size",
        "kv_cache_group_id",
        "block_mask",
    ),
    "touch": ("self", "blocks"),
    "free_blocks": ("self", "ordered_blocks"),
}

_WAITING = frozenset(
    (
        "add_request",
        "pop_request",
        "peek_request",
        "prepend_request",
        "prepend_requests",
        "remove_request",
        "remove_requests",
        "__bool__",
        "__len__",
        "__iter__",
    )
)

_SCHEDULER_STATE = (
    "vllm_config",
    "requests",
    "running",
    "waiting",
    "kv_holding_waiting",
    "deferred_waiting",
    "grammar_compile_error_reqs",
    "current_step",
    "max_model_len",
    "max_num_running_reqs",
    "max_num_active_reqs",
    "max_num_scheduled_tokens",
    "scheduler_reserve_full_isl",
    "block_size",
    "kv_cache_manager",
    "structured_output_manager",
    "_pause_state",
)

_REQUEST_STATE = (
    "num_computed_tokens",
    "num_output_placeholders",
    "num_stale_output_tokens",
    "drop_stale_output",
    "next_decode_eligible_step",
    "block_hashes",
    "sampling_params",
    "priority",
    "arrival_time",
    "status",
    "num_prompt_tokens",
    "max_tokens",
    "resumable",
    "skip_reading_prefix_cache",
    "all_token_ids",
    "prompt_embeds",
)

_PARAMETERS = (
    "extra_args",
    "max_tokens",
    "min_tokens",
    "n",
    "output_kind",
    "stop",
    "logprobs",
    "prompt_logprobs",
    "structured_outputs",
    "clone",
    "verify",
)


def check_classes() -> None:
    """Hold vLLM's classes against what the bridge was written for.

    Raises:
        UnsupportedEngineError: listing what differs and what to install.
    """
    shapes: dict[str, tuple[object, tuple[str, ...]]] = {}
    for owner, table in ((Scheduler, _SCHEDULER), (BlockPool, _POOL)):
        for name, parameters in table.items():
            shapes[f"{owner.__name__}.{name}"] = (getattr(owner, name, None), parameters)
    shapes["EngineCore.add_request"] = (
        getattr(EngineCore, "add_request", None),
        ("self", "request", "request_wave"),
    )
    shapes["StructuredOutputManager._create_grammar"] = (
        getattr(StructuredOutputManager, "_create_grammar", None),
        ("self", "request"),  # what the compiler's executor is given
    )
    check_shapes(shapes)
    queue_methods = {
        name
        for name in vars(FreeKVCacheBlockQueue)
        if callable(getattr(FreeKVCacheBlockQueue, name)) and not name.startswith("_")
    }
    check_attributes(
        {
            "Weir's free-block queue (vLLM's has it)": (ClassedBlockQueue, sorted(queue_methods)),
            "RequestQueue": (RequestQueue, sorted(_WAITING)),
            "EngineCoreRequestType": (EngineCoreRequestType, ["WAKEUP"]),
            "KVCacheManager": (
                KVCacheManager,
                [
                    "truncate_computed_blocks",
                    "create_kv_cache_blocks",
                    "take_kv_cache_block_copies",
                ],
            ),
        }
    )
    params = SamplingParams(max_tokens=1)
    request = Request("weir-check", [0], params, None)
    check_attributes({"Request": (request, _REQUEST_STATE)})
    output = EngineCoreOutput(request_id="weir-check", new_token_ids=[])
    check_attributes({"EngineCoreOutput": (output, OUTPUT_FIELDS)})
    check_attributes({"SamplingParams": (params, _PARAMETERS)})
    unknown = sorted(RequestQueue.__abstractmethods__ - _WAITING)
    check_attributes({"Weir's waiting queue (vLLM's has it)": (object, unknown)})


def check_scheduler(scheduler: Any) -> None:
    """Hold a constructed scheduler against what the bridge reads and sets.

    Raises:
        UnsupportedEngineError: listing what is missing and what to install.
    """
    check_attributes({"Scheduler": (scheduler, _SCHEDULER_STATE)})
    manager = scheduler.kv_cache_manager
    check_attributes(
        {
            "KVCacheManager": (manager, ["block_pool", "coordinator"]),
            "BlockPool": (
                manager.block_pool,
                ["blocks", "free_block_queue", "null_block", "cached_block_hash_to_block"],
            ),
            "SingleTypeKVCacheManager": (
                manager.coordinator.single_type_managers[0],
                ["req_to_blocks"],
            ),
        }
    )


def graph_tokens(compilation: Any) -> int:
    """Tokens of the largest step with prompts that vLLM runs as a CUDA graph; 0 where none is."""
    if not compilation.cudagraph_mode or not compilation.cudagraph_mode.mixed_mode():
        return 0
    return int(compilation.max_cudagraph_capture_size or 0)
