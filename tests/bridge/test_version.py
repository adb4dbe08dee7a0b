"""A vLLM that Weir was not written for is refused at start, with everything that differs."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from weir_agent.vllm_bridge.version import (
    UnsupportedEngineError,
    check_attributes,
    check_config,
    check_kv_groups,
    check_shapes,
    check_version,
)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.32.1+cpu", "0.32.0rc1"])
def test_every_patch_of_the_supported_version_is_taken(version: str) -> None:
    assert not is_refused(check_version, version)


def is_refused(check: Callable[..., None], *given: object, **named: object) -> bool:
    try:
        check(*given, **named)
    except UnsupportedEngineError:
        return True
    return False


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.320.1", "1.0.32", "dev"])
def test_another_version_is_refused_with_the_one_to_install(version: str) -> None:
    wanted = f'vLLM {version} is installed and Weir supports 0.32.x: install "vllm==0.32.*"'
    with pytest.raises(UnsupportedEngineError, match=re.escape(wanted)):
        check_version(version)


def test_functions_that_changed_are_all_listed() -> None:
    def schedule(self: object, throttle: bool) -> None:
        """Another parameter name."""

    with pytest.raises(UnsupportedEngineError) as refusal:
        check_shapes(
            {
                "Scheduler.schedule": (schedule, ("self", "throttle_prefills")),
                "Scheduler.gone": (None, ("self",)),
            }
        )
    assert "Scheduler.schedule takes (self, throttle), not (self, throttle_prefills)" in str(
        refusal.value
    )
    assert "Scheduler.gone is missing" in str(refusal.value)
    assert 'install "vllm==0.32.*"' in str(refusal.value)


def test_attributes_that_are_gone_are_listed() -> None:
    with pytest.raises(UnsupportedEngineError, match=r"Scheduler\.running is missing"):
        check_attributes({"Scheduler": (SimpleNamespace(waiting=[]), ["waiting", "running"])})


def engine_config(**changes: object) -> SimpleNamespace:
    """A configuration that Weir takes, with changes as ``part__name=value``."""
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(
            policy="priority",
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
            watermark=0.0,
            prefill_schedule_interval=1,
            max_num_queued_reqs=None,
            max_num_queued_tokens=None,
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        model_config=SimpleNamespace(
            runner_type="generate",
            is_encoder_decoder=False,
            is_multimodal_model=False,
            supports_multimodal_inputs=False,
            is_diffusion=False,
            skip_tokenizer_init=False,
            max_model_len=1024,
            original_max_model_len=1024,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=33, block_size=32, user_specified_block_size=True
        ),
        speculative_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        lora_config=None,
    )
    for name, value in changes.items():
        part, _, attribute = name.rpartition("__")
        setattr(getattr(config, part) if part else config, attribute, value)
    return config


def test_the_configuration_that_weir_is_for_is_taken() -> None:
    assert not is_refused(check_config, engine_config())


def test_a_cache_whose_blocks_or_lengths_may_still_change_is_left_to_the_engine() -> None:
    few = {"cache_config__num_gpu_blocks_override": 8}
    assert not is_refused(
        check_config, engine_config(**few, cache_config__user_specified_block_size=False)
    )
    assert not is_refused(
        check_config, engine_config(**few, model_config__original_max_model_len=-1)
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scheduler_config__policy": "fcfs"}, "scheduling_policy must be 'priority'"),
        ({"scheduler_config__enable_chunked_prefill": False}, "chunked prefill"),
        ({"scheduler_config__long_prefill_token_threshold": 64}, "long_prefill_token_threshold"),
        ({"scheduler_config__watermark": 0.1}, "watermark"),
        ({"scheduler_config__max_num_queued_reqs": 64}, "batch lines count too"),
        ({"scheduler_config__max_num_queued_tokens": 8192}, "batch lines count too"),
        (
            {"cache_config__num_gpu_blocks_override": 32},
            "32 holds 992 tokens, less than max_model_len 1024: give at least 33, or lower",
        ),
        ({"cache_config__num_gpu_blocks_override": 0}, "holds 0 tokens"),
        ({"speculative_config": object()}, "speculative"),
        ({"kv_transfer_config": object()}, "KV connectors"),
        ({"ec_transfer_config": object()}, "encoder-cache connectors"),
        ({"lora_config": object()}, "LoRA"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"parallel_config__data_parallel_size": 2}, "data_parallel_size"),
        ({"model_config__runner_type": "pooling"}, "pooling"),
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_config__skip_tokenizer_init": True}, "text of every answer is empty"),
        (
            {
                "model_config__is_multimodal_model": True,
                "model_config__supports_multimodal_inputs": True,
            },
            "multimodal",
        ),
    ],
)
def test_what_weir_cannot_drive_is_refused_with_the_reason(
    change: dict[str, object], reason: str
) -> None:
    with pytest.raises(UnsupportedEngineError, match=reason):
        check_config(engine_config(**change))


def test_all_reasons_are_listed_at_once() -> None:
    config = engine_config(lora_config=object(), speculative_config=object())
    with pytest.raises(UnsupportedEngineError) as refusal:
        check_config(config)
    assert str(refusal.value).count("\n  - ") == 2


class FullAttention:
    sliding_window: int | None = None
    attention_chunk_size: int | None = None


class Windowed(FullAttention):
    sliding_window = 128


class Mamba:
    pass


def groups(*specs: object) -> list[SimpleNamespace]:
    return [SimpleNamespace(kv_cache_spec=spec) for spec in specs]


def test_one_group_of_full_attention_is_taken() -> None:
    one = groups(FullAttention())
    assert not is_refused(check_kv_groups, one, full_attention=FullAttention)


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ((FullAttention(), FullAttention()), "one KV cache group and has 2"),
        ((), "one KV cache group and has 0"),
        ((Mamba(),), "full attention and is Mamba"),
        ((Windowed(),), "uses a window"),
    ],
)
def test_other_kv_caches_are_refused(specs: tuple[object, ...], reason: str) -> None:
    with pytest.raises(UnsupportedEngineError, match=reason):
        check_kv_groups(groups(*specs), full_attention=FullAttention)
