"""The tiny model of the whole-process tests: two layers, a kilotoken of context."""

from __future__ import annotations

from pathlib import Path

from weir_agent.sample_model import SampleModelShape, write_sample_model

TINY = SampleModelShape(
    layers=2,
    hidden_size=128,
    intermediate_size=256,
    heads=4,
    kv_heads=2,
    max_length_tokens=1024,
)


def write_tiny_model(path: Path) -> Path:
    """The folder that now holds the model."""
    write_sample_model(path, TINY)
    return path
