"""What the processor computes with. Linux tells it in `/proc/cpuinfo`."""

from __future__ import annotations

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # the last is ARM's


def native_dtype(cpuinfo: str | None = None) -> str:
    """The ``--dtype`` for a model in bfloat16: as it is where the processor has that format.

    Elsewhere each operation converts: with float32 prompts take a quarter of the time and single
    decodes a third more (Xeon with AVX-512, 26 million parameters); memory is twice as much.
    ``cpuinfo`` is what Linux tells of the processor, by default of this one.
    """
    if cpuinfo is None:
        cpuinfo = _CPUINFO.read_text(encoding="utf-8") if _CPUINFO.exists() else ""
    features: set[str] = set()
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in {"flags", "features"}:
            features.update(value.split())
    return "float32" if features.isdisjoint(_BFLOAT16) else "bfloat16"
