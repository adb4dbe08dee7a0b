"""Makes the simulator's timing tables from raw measurements; run when a source changes.

Run: python -m scripts.profiles RAW_DIR [--out DIR]. Which files RAW_DIR must hold, and where
they come from, is in docs/simulator.md ("Where the timings come from").
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scripts.profiles import llmservingsim, vidur
from scripts.profiles.tables import read, write

OUT = Path(__file__).resolve().parents[2] / "node_agent/weir_engine/sim/profiles/data"

_VIDUR = {
    "source": "microsoft/vidur 7d47513, data/profiling/compute/a100",
    "licence": "MIT",
    "mark": "measured",
}
_VIDUR_A30 = {
    "source": "AKafakA/vidur_opt_scheduler 20bdc49",
    "licence": "MIT",
    "mark": "measured",
}
_RTX = {
    "source": "casys-kaist/LLMServingSim 5daddb2, profiler/perf (vLLM 0.19, bf16)",
    "licence": "MIT",
    "mark": "measured",
}
_DISTSERVE = {
    "source": "LLMServe/DistServe 82831f1, simdistserve",
    "licence": "Apache-2.0",
    "mark": "measured",
}


def main() -> None:
    """Reads all sources, writes all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path, help="folder with vidur_a100, vidur_a30, rtxpro6000, …")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    raw, out = given.raw, given.out
    a100, rtx = raw / "vidur_a100", raw / "rtxpro6000"
    for model, file, degrees in (
        ("llama-2-7b", "Llama-2-7b-hf", (1,)),
        ("llama-3-8b", "Meta-Llama-3-8B", (1,)),
        ("llama-2-70b", "Llama-2-70b-hf", (1, 2, 4)),
    ):
        rows = read(a100 / f"{file}_mlp.csv.gz")
        write(f"dense-a100-{model}", _VIDUR, vidur.dense(rows, degrees), out)
    rows = read(a100 / "Llama-2-70b-hf_tp2_attention.csv.gz")
    write("attention-a100", _VIDUR, vidur.attention(rows), out)
    links = {
        op: vidur.network(read(a100 / f"network_dgx_{op}.csv.gz"), op)
        for op in ("all_reduce", "send_recv")
    }
    write("network-dgx-a100", _VIDUR, links, out)
    rows = read(raw / "vidur_a30/Qwen-2-7B_mlp.csv.gz")
    write("dense-a30-qwen-2-7b", _VIDUR_A30, vidur.dense(rows, (1,)), out)
    rows = read(raw / "vidur_a30/Qwen-2-7B_attention.csv.gz")
    write("attention-a30", _VIDUR_A30, vidur.attention(rows), out)
    stem = "Llama-3.1-8B_tp1"
    dense = llmservingsim.dense(read(rtx / f"{stem}_dense.csv.gz"))
    write("dense-rtx-pro-6000-llama-3.1-8b", _RTX, dense, out)
    fused = llmservingsim.attention(read(rtx / f"{stem}_attention.csv.gz"))
    write("attention-rtx-pro-6000", _RTX, fused, out)
    write("skew-rtx-pro-6000", _RTX, llmservingsim.skew(read(rtx / f"{stem}_skew.csv.gz")), out)
    sequences = llmservingsim.per_sequence(read(rtx / f"{stem}_per_sequence.csv.gz"))
    write("per-sequence-rtx-pro-6000", _RTX, sequences, out)
    coefficients = json.loads((raw / "distserve/a100_coefficients.json").read_text())
    write("coefficients-a100-opt-13b", _DISTSERVE, coefficients["facebook/opt-13b"], out)


if __name__ == "__main__":
    main()
