"""The packaged measurements as they stand in ``data/``; made by scripts/profiles.

The only thing that the engine ever reads: files of its own package, once each.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any, TypedDict


class Origin(TypedDict):
    """Where a file's numbers come from."""

    source: str
    licence: str
    mark: str


class ModuleData(TypedDict):
    """One operator: microseconds and their standard deviation, one a size."""

    us: list[float]
    std_us: list[float]


class DegreeData(TypedDict):
    """All operators at one tensor-parallel degree, by number of tokens."""

    tokens: list[int]
    modules: dict[str, ModuleData]


class DenseData(Origin):
    """All operators but attention; keys of ``tp`` are degrees."""

    tp: dict[str, DegreeData]


class DecodeData(TypedDict):
    """``us[i][j]``: ``sequences[i]`` decodes over ``context[j]`` tokens each."""

    sequences: list[int]
    context: list[int]
    us: list[list[float]]
    relative_std: float


class PrefillRow(TypedDict):
    """``us[j]``: ``chunk`` new tokens on ``history[j]``."""

    chunk: int
    history: list[int]
    us: list[float]


class HeadsData(TypedDict):
    """Heads of the model that was measured, before tensor parallelism splits them."""

    query: int
    kv: int


class AttentionData(Origin):
    """Prefill and decode attention in kernels of their own."""

    heads: HeadsData
    tensor_parallel: int
    decode: DecodeData
    prefill: list[PrefillRow]
    prefill_relative_std: float


class FusedData(Origin):
    """``us[i][j]``: ``chunk[i]`` on ``history[j]`` alone, then with each (decodes, context)."""

    chunk: list[int]
    history: list[int]
    decodes: list[int]
    context: list[int]
    us: list[list[list[float]]]
    pure_decodes: list[int]
    pure_context: list[int]
    pure_us: list[list[float]]
    relative_std: float


class SkewRows(TypedDict):
    """``alpha[i][j]``: ``sequences[i]`` decodes, the file's ``shares[j]``."""

    sequences: list[int]
    alpha: list[list[float]]


class SkewData(Origin):
    """The effect of uneven contexts, with and without a prefill in the step."""

    shares: list[float]
    pure: SkewRows
    mixed: SkewRows


class HeadData(Origin):
    """What a sequence costs at the end of a step, by number of sequences."""

    sequences: list[int]
    lm_head: list[float]
    sampler: list[float]


class LinkData(TypedDict):
    """Microseconds by message size."""

    bytes: list[int]
    us: list[float]


class NetworkData(Origin):
    """By number of workers, all in one server."""

    all_reduce: dict[str, LinkData]
    send_recv: dict[str, LinkData]


class CoefficientData(TypedDict):
    """DistServe's closed form, milliseconds."""

    decoding_large_small_bs_threshold: int
    prefill: list[float]
    decoding_smallbs: list[float]
    decoding_largebs: list[float]


@cache
def read(name: str) -> Any:  # noqa: ANN401 - the caller names the TypedDict
    """A data file by name, without its ending."""
    text = files("weir_engine.sim.profiles").joinpath("data", f"{name}.json").read_text("utf-8")
    return json.loads(text)


def origin(name: str) -> Origin:
    """Where the numbers of a data file come from."""
    found: Origin = read(name)
    return found
