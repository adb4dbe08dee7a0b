"""The format in which a model runs on this processor."""

from pathlib import Path

import pytest

from weir_cli.loadlab import processor
from weir_cli.loadlab.processor import native_dtype

EPYC = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse4_2 avx512f avx512_bf16 rdpid\n"
XEON = "model name\t: Xeon, no bf16 here\nflags\t\t: fpu avx512f avx512_vnni\n"
GRAVITON = "processor\t: 0\nFeatures\t: fp asimd i8mm bf16 dgh\n"


@pytest.mark.parametrize(
    ("cpuinfo", "dtype"),
    [
        (EPYC, "bfloat16"),
        ("flags : fpu amx_bf16 amx_tile\n", "bfloat16"),
        (GRAVITON, "bfloat16"),
        (XEON, "float32"),
        (XEON + EPYC, "bfloat16"),
        ("", "float32"),
    ],
)
def test_bfloat16_only_where_the_processor_has_it(cpuinfo: str, dtype: str) -> None:
    assert native_dtype(cpuinfo) == dtype


@pytest.mark.parametrize(("told", "dtype"), [(EPYC, "bfloat16"), (None, "float32")])
def test_this_machine_is_asked(
    told: str | None, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told is not None:
        (tmp_path / "cpuinfo").write_text(told)
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert native_dtype() == dtype
