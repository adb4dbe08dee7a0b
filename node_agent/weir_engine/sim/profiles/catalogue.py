"""Which profiles there are, and what each is put together from.

A part that was measured on something else is scaled here, and its origin says so.
"""

from dataclasses import dataclass
from functools import cache
from itertools import starmap

from weir_engine.errors import ConfigError
from weir_engine.sim.profiles import data
from weir_engine.sim.profiles.attention import FusedAttention, SeparateAttention
from weir_engine.sim.profiles.hardware import Gpu, HardwareProfile, ModelShape, Origin
from weir_engine.sim.profiles.tables import (
    DecodeTable,
    DenseTables,
    PrefillTable,
    SkewTable,
    StepTable,
)
from weir_engine.sim.profiles.timing import (
    CoefficientTiming,
    HeadTables,
    KernelTiming,
    Links,
    NetworkTable,
)

_MIB = 1 << 20
_FIXED_S, _REQUEST_S = 1.5e-3, 1e-5
_SKEW, _HEAD = "skew-rtx-pro-6000", "per-sequence-rtx-pro-6000"
_A100_BANDWIDTH = 2.039e12

A100_80GB = Gpu(
    name="A100 80GB SXM",
    memory_bytes=81559 * _MIB,
    bandwidth_bytes_s=_A100_BANDWIDTH,
    flops=312e12,
    pcie_bytes_s=25e9,
)
A100_40GB = Gpu(
    name="A100 40GB SXM",
    memory_bytes=40536 * _MIB,
    bandwidth_bytes_s=1.555e12,
    flops=312e12,
    pcie_bytes_s=25e9,
)
A30 = Gpu(
    name="A30",
    memory_bytes=24258 * _MIB,
    bandwidth_bytes_s=0.933e12,
    flops=165e12,
    pcie_bytes_s=25e9,
)
RTX_PRO_6000 = Gpu(
    name="RTX PRO 6000 Blackwell",
    memory_bytes=97887 * _MIB,
    bandwidth_bytes_s=1.792e12,
    flops=503e12,
    pcie_bytes_s=50e9,
)
_MODELS = {
    model.name: model
    for model in (
        ModelShape(
            name="llama-2-7b",
            layers=32,
            hidden=4096,
            query_heads=32,
            kv_heads=32,
            head_dim=128,
            vocab=32_000,
            parameters=6.738e9,
        ),
        ModelShape(
            name="llama-3.1-8b",
            layers=32,
            hidden=4096,
            query_heads=32,
            kv_heads=8,
            head_dim=128,
            vocab=128_256,
            parameters=8.030e9,
        ),
        ModelShape(
            name="llama-2-70b",
            layers=80,
            hidden=8192,
            query_heads=64,
            kv_heads=8,
            head_dim=128,
            vocab=32_000,
            parameters=68.977e9,
        ),
        ModelShape(
            name="opt-13b",
            layers=40,
            hidden=5120,
            query_heads=40,
            kv_heads=40,
            head_dim=128,
            vocab=50_272,
            parameters=12.853e9,
        ),
        ModelShape(
            name="qwen-2-7b",
            layers=28,
            hidden=3584,
            query_heads=28,
            kv_heads=4,
            head_dim=128,
            vocab=152_064,
            parameters=7.616e9,
        ),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kernels:
    """One profile made from kernel tables."""

    gpu: Gpu
    model: str
    dense: str
    attention: str
    tensor_parallel: int = 1
    pcie: bool = False


_A100_DENSE = {
    "llama-2-7b": "dense-a100-llama-2-7b",
    "llama-3.1-8b": "dense-a100-llama-3-8b",
    "llama-2-70b": "dense-a100-llama-2-70b",
}


def _a100(gpu: Gpu, model: str, degree: int = 1, *, pcie: bool = False) -> _Kernels:
    return _Kernels(
        gpu=gpu,
        model=model,
        dense=_A100_DENSE[model],
        attention="attention-a100",
        tensor_parallel=degree,
        pcie=pcie,
    )


_KERNELS = {
    "a100-80gb-llama-2-7b": _a100(A100_80GB, "llama-2-7b"),
    "a100-80gb-llama-3.1-8b": _a100(A100_80GB, "llama-3.1-8b"),
    "a100-80gb-llama-2-70b-tp1": _a100(A100_80GB, "llama-2-70b"),
    "a100-80gb-llama-2-70b-tp2": _a100(A100_80GB, "llama-2-70b", 2),
    "a100-80gb-llama-2-70b-tp4": _a100(A100_80GB, "llama-2-70b", 4),
    "a100-80gb-pcie-llama-2-70b-tp4": _a100(A100_80GB, "llama-2-70b", 4, pcie=True),
    "a100-40gb-llama-2-7b": _a100(A100_40GB, "llama-2-7b"),
    "a100-40gb-llama-3.1-8b": _a100(A100_40GB, "llama-3.1-8b"),
    "rtx-pro-6000-llama-3.1-8b": _Kernels(
        gpu=RTX_PRO_6000,
        model="llama-3.1-8b",
        dense="dense-rtx-pro-6000-llama-3.1-8b",
        attention="attention-rtx-pro-6000",
    ),
    "a30-qwen-2-7b": _Kernels(
        gpu=A30, model="qwen-2-7b", dense="dense-a30-qwen-2-7b", attention="attention-a30"
    ),
}
_COEFFICIENTS = {f"a100-40gb-opt-13b-tp{degree}": degree for degree in (1, 2, 4)}

PROFILES = (*_KERNELS, *_COEFFICIENTS)
"""Names that ``load_profile`` knows; docs/simulator.md describes each."""


@cache
def load_profile(name: str) -> HardwareProfile:
    """A hardware profile by name, from the packaged measurements.

    Raises:
        ConfigError: an unknown name.
    """
    if name in _KERNELS:
        return _from_kernels(name, _KERNELS[name])
    if name in _COEFFICIENTS:
        return _from_coefficients(name, _COEFFICIENTS[name])
    raise ConfigError(f"profile is {name!r}: give one of {', '.join(PROFILES)}")


def _from_kernels(name: str, given: _Kernels) -> HardwareProfile:
    gpu, model, degree = given.gpu, _MODELS[given.model], given.tensor_parallel
    slower = _A100_BANDWIDTH / gpu.bandwidth_bytes_s if gpu is A100_40GB else 1.0
    dense_data: data.DenseData = data.read(given.dense)
    dense = DenseTables.of(dense_data["tp"][str(degree)])
    origins = [_origin("dense layers", given.dense)]
    if slower > 1:
        dense = dense.stretched(slower)
        origins.append(_stretched("dense layers", slower))
    skew = SkewTable.of(data.read(_SKEW))
    if given.attention == "attention-rtx-pro-6000":
        attention: SeparateAttention | FusedAttention = FusedAttention(
            data.read(given.attention), skew
        )
        origins += [_origin("attention", given.attention), _origin("uneven contexts", _SKEW)]
    else:
        attention, notes = _separate(given.attention, model, degree, slower, skew)
        origins += notes
    head, notes = _head(gpu, model, degree)
    links, link_notes = _links(model, degree, pcie=given.pcie)
    origins += [*notes, *link_notes, *_declared()]
    timing = KernelTiming(
        layers=model.layers,
        dense=dense,
        attention=attention,
        head=head,
        links=links,
        fixed_s=_FIXED_S,
        request_s=_REQUEST_S,
    )
    return HardwareProfile(
        name=name,
        gpu=gpu,
        model=model,
        timing=timing,
        origins=tuple(origins),
        tensor_parallel=degree,
    )


def _separate(
    file: str, model: ModelShape, degree: int, slower: float, skew: SkewTable
) -> tuple[SeparateAttention, list[Origin]]:
    """Attention scaled from the heads that were measured to the model's own."""
    table: data.AttentionData = data.read(file)
    heads, split = table["heads"], table["tensor_parallel"]
    queries = (model.query_heads / degree) / (heads["query"] / split)
    keys = (model.kv_heads / degree) / (heads["kv"] / split)
    attention = SeparateAttention(
        prefill=PrefillTable(table["prefill"]),
        decode=DecodeTable(table["decode"]),
        skew=skew,
        prefill_scale=queries,
        decode_scale=keys * slower,
        prefill_relative_std=table["prefill_relative_std"],
        decode_relative_std=table["decode"]["relative_std"],
    )
    origins = [_origin("attention", file)]
    if (queries, keys) != (1.0, 1.0):
        origins.append(
            Origin(
                part="attention",
                mark="derived",
                source=table["source"],
                note=f"prefill by query heads (x{queries:g}), decode by KV heads (x{keys:g})",
            )
        )
    if slower > 1:
        origins.append(_stretched("decode attention", slower))
    origins.append(
        Origin(
            part="uneven contexts",
            mark="derived",
            source=data.origin(_SKEW)["source"],
            note="the effect measured on RTX PRO 6000",
        )
    )
    return attention, origins


def _head(gpu: Gpu, model: ModelShape, degree: int) -> tuple[HeadTables, list[Origin]]:
    """Measured on RTX PRO 6000; elsewhere lm_head by roofline and the sampler by vocabulary."""
    table: data.HeadData = data.read(_HEAD)
    counts = table["sequences"]
    measured_vocab = _MODELS["llama-3.1-8b"].vocab
    if gpu is RTX_PRO_6000:
        head = HeadTables(
            lm_head=StepTable.of(counts, table["lm_head"]),
            sampler=StepTable.of(counts, table["sampler"]),
        )
        return head, [_origin("lm_head and sampler", _HEAD)]
    weights = 2 * model.vocab * model.hidden / degree
    read_us = weights / gpu.bandwidth_bytes_s * 1e6
    each_us = weights / gpu.flops * 1e6
    sampler = [us * model.vocab / measured_vocab for us in table["sampler"]]
    head = HeadTables(
        lm_head=StepTable.of(counts, [max(read_us, each_us * n) for n in counts]),
        sampler=StepTable.of(counts, sampler),
    )
    return head, [
        Origin(part="lm_head", mark="derived", source="roofline of the GPU's data sheet"),
        Origin(
            part="sampler",
            mark="derived",
            source=table["source"],
            note="by size of the vocabulary",
        ),
    ]


def _links(model: ModelShape, degree: int, *, pcie: bool) -> tuple[Links, list[Origin]]:
    token_bytes = 2 * model.hidden
    if degree == 1:
        return Links(token_bytes=token_bytes), []
    if pcie:
        # A ring moves 2 (n - 1) / n of the message over each link, at 20 GB/s of the nominal 32.
        table = NetworkTable.alpha_beta(alpha_us=20.0, bytes_s=20e9 / (2 * (degree - 1) / degree))
        note = "alpha 20 us, 20 GB/s a link, ring of PCIe 4.0 x16"
        origin = Origin(part="all-reduce", mark="declared", source="alpha-beta model", note=note)
        return Links(token_bytes=token_bytes, all_reduce=table), [origin]
    network: data.NetworkData = data.read("network-dgx-a100")
    link = network["all_reduce"][str(degree)]
    table = NetworkTable(sizes_bytes=link["bytes"], us=link["us"])
    return Links(token_bytes=token_bytes, all_reduce=table), [
        _origin("all-reduce", "network-dgx-a100")
    ]


def _from_coefficients(name: str, degree: int) -> HardwareProfile:
    file = "coefficients-a100-opt-13b"
    entry: data.CoefficientData = data.read(file)[str(degree)]
    return HardwareProfile(
        name=name,
        gpu=A100_40GB,
        model=_MODELS["opt-13b"],
        timing=CoefficientTiming.of(entry, relative_std=0.01),
        origins=(
            _origin("step", file, note="closed form; the GPUs were 80 GB ones"),
            Origin(part="noise", mark="declared", source="1% of a step"),
            Origin(part="capacity", mark="declared", source="A100 40GB data sheet"),
        ),
        tensor_parallel=degree,
    )


def _origin(part: str, file: str, note: str = "") -> Origin:
    found = data.origin(file)
    return Origin(
        part=part,
        mark=found["mark"],
        source=found["source"],
        licence=found["licence"],
        note=note,
    )


def _stretched(part: str, ratio: float) -> Origin:
    return Origin(
        part=part,
        mark="derived",
        source="data sheets: 1,555 against 2,039 GB/s",
        note=f"what memory bounds takes {ratio:.2f} times as long, compute as measured",
    )


def _declared() -> tuple[Origin, ...]:
    return tuple(
        starmap(
            lambda part, source: Origin(part=part, mark="declared", source=source),
            (
                ("host", f"{_FIXED_S * 1e3:g} ms a step and {_REQUEST_S * 1e6:g} us a request"),
                ("capacity", "data sheet, 90% of memory less weights and 1.7 GB a GPU"),
                ("PCIe and CPU lane", "data sheets; 80% of nominal DRAM bandwidth"),
            ),
        )
    )
