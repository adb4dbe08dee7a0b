"""What the settings of an engine make of its scheduler."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest

from weir_agent.vllm_bridge.messages import read_settings
from weir_agent.vllm_bridge.planner import build_planner
from weir_engine.config import EngineShape
from weir_engine.kv.manager import KvManager

SHAPE = EngineShape(
    block_size_tokens=16,
    total_blocks=64,
    max_batched_tokens=512,
    max_seqs=16,
    max_model_len_tokens=512,
)
TBT = {"metric": "tbt", "statistic": "p99", "threshold_s": 0.1}


@pytest.mark.parametrize(
    ("settings", "rule"),
    [({}, "ttft-quiet"), ({"slos": [TBT]}, "longest"), ({"over_alone": None}, "longest")],
)
def test_online_latency_is_held_where_nobody_gave_an_objective(
    settings: dict[str, Any], rule: str
) -> None:
    """Design §9; without online requests it is the bound of a quiet engine."""
    kv = KvManager(total_blocks=64, block_size_tokens=16)
    planner = build_planner(read_settings({"weir": settings}), SHAPE, kv)
    assert planner.plan(1000.0).limit_reason == rule


@pytest.mark.parametrize(
    ("mode", "tokens"),
    [
        ("NONE", 0),
        ("FULL_DECODE_ONLY", 0),  # a step with prompts is no graph
        ("PIECEWISE", 512),
        ("FULL", 512),
        ("FULL_AND_PIECEWISE", 512),
    ],
)
def test_the_largest_graph_is_read_from_vllms_configuration(mode: str, tokens: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's and torch's own, while they load
        config = importlib.import_module("vllm.config")
        shapes = importlib.import_module("weir_agent.vllm_bridge.shapes")
    given = config.CompilationConfig(cudagraph_mode=mode, max_cudagraph_capture_size=512)
    assert shapes.graph_tokens(given) == tokens
    given.max_cudagraph_capture_size = None  # what an engine without an accelerator has
    assert shapes.graph_tokens(given) == 0
