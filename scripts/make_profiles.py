"""Makes the simulator's timing tables from raw measurements; run when a source changes.

Run: python scripts/make_profiles.py RAW_DIR [--out DIR]. Which files RAW_DIR must hold, and where
they come from, is in docs/simulator.md ("Where the timings come from").
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "node_agent/weir_engine/sim/profiles/data"
Rows = list[dict[str, str]]

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
_VIDUR_MODULES = {
    "input_layernorm": "input_norm",
    "attn_pre_proj": "qkv_proj",
    "attn_rope": "rope",
    "attn_post_proj": "o_proj",
    "post_attention_layernorm": "post_norm",
    "mlp_up_proj": "gate_up_proj",
    "mlp_act": "act_fn",
    "mlp_down_proj": "down_proj",
    "add": "add",
}
_RTX_MODULES = {
    "qkv_proj": "qkv_proj",
    "rotary_emb": "rope",
    "o_proj": "o_proj",
    "gate_up_proj": "gate_up_proj",
    "act_fn": "act_fn",
    "down_proj": "down_proj",
}
_FUSED_CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_FUSED_HISTORY = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FUSED_DECODES = (1, 2, 4, 8, 16, 32, 64, 128)
_FUSED_CONTEXT = _FUSED_HISTORY[1:]
_ALPHA_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95)


def read(path: Path) -> Rows:
    """The rows of a gzip-compressed CSV file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def dense_vidur(rows: Rows, degrees: Sequence[int]) -> dict[str, Any]:
    """Medians and standard deviations by module and number of tokens, one table a TP degree."""
    made: dict[str, Any] = {}
    dropped = 0
    for degree in degrees:
        mine = [row for row in rows if int(row["num_tensor_parallel_workers"]) == degree]
        modules: dict[str, Any] = {}
        for op, name in (*_VIDUR_MODULES.items(), ("emb", "embedding")):
            cells = _column(mine, op)
            good = _trusted(cells)
            dropped += len(cells) - len(good)
            modules[name] = _table(good, sorted(cells))
        tokens = sorted({int(row["num_tokens"]) for row in mine})
        made[str(degree)] = {"tokens": tokens, "modules": modules}
    return {"tp": made, "dropped_points": dropped}


def _column(rows: Rows, op: str) -> dict[int, tuple[float, float]]:
    """(median, std) in microseconds by tokens; a size measured twice gives the mean of both."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        middle, spread = row[f"time_stats.{op}.median"], row[f"time_stats.{op}.std"]
        found[int(row["num_tokens"])].append((float(middle or 0) * 1e3, float(spread or 0) * 1e3))
    return {
        n: (sum(us for us, _ in cells) / len(cells), sum(std for _, std in cells) / len(cells))
        for n, cells in found.items()
    }


def _trusted(cells: Mapping[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
    """Without empty cells and those far below the smallest size's time: failed measurements."""
    floor = 0.5 * cells[min(cells)][0]
    return {n: cell for n, cell in cells.items() if cell[0] > max(floor, 0.5)}


def _table(good: Mapping[int, tuple[float, float]], wanted: Sequence[int]) -> dict[str, Any]:
    known = sorted(good)
    values = []
    for n in wanted:
        if n in good:
            values.append(good[n])
            continue
        below = max((k for k in known if k < n), default=known[0])
        above = min((k for k in known if k > n), default=known[-1])
        share = 0.0 if above == below else (n - below) / (above - below)
        low, high = good[below], good[above]
        values.append((low[0] + share * (high[0] - low[0]), max(low[1], high[1])))
    return {"us": [_round(v) for v, _ in values], "std_us": [_round(s) for _, s in values]}


def attention_vidur(rows: Rows) -> dict[str, Any]:
    """Decode by (sequences, context of each) and prefill by (chunk, history), one sequence."""
    decode: dict[tuple[int, int], list[float]] = defaultdict(list)
    prefill: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    spread: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        history = int(row["kv_cache_size"])
        if row["is_prefill"] == "True":
            kind = "prefill"
            us = float(row["time_stats.attn_prefill.median"]) * 1e3
            prefill[int(row["prefill_chunk_size"])][history].append(us)
        else:
            kind = "decode"
            us = float(row["time_stats.attn_decode.median"]) * 1e3
            decode[int(row["batch_size"]), history].append(us)
        if us >= 50:  # below, the clock's step of one microsecond is most of the deviation
            spread[kind].append(float(row[f"time_stats.attn_{kind}.std"]) * 1e3 / us)
    counts = sorted({n for n, _ in decode})
    contexts = sorted({c for _, c in decode})
    return {
        "heads": {"query": int(rows[0]["n_q_head"]), "kv": int(rows[0]["n_kv_head"])},
        "tensor_parallel": int(rows[0]["num_tensor_parallel_workers"]),
        "decode": {
            "sequences": counts,
            "context": contexts,
            "us": [[_mean(decode[n, c]) for c in contexts] for n in counts],
            "relative_std": _round(median(spread["decode"])),
        },
        "prefill": [
            {
                "chunk": chunk,
                "history": sorted(cells),
                "us": [_mean(cells[h]) for h in sorted(cells)],
            }
            for chunk, cells in sorted(prefill.items())
        ],
        "prefill_relative_std": _round(median(spread["prefill"])),
    }


def dense_rtx(rows: Rows) -> dict[str, Any]:
    """The same table as vidur's; the source has no deviations: scatter stands in for them."""
    columns: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        columns[row["layer"]][int(row["tokens"])] = float(row["time_us"])
    tokens = sorted(columns["act_fn"])
    modules = {}
    for layer, name in _RTX_MODULES.items():
        modules[name] = _with_scatter([columns[layer][n] for n in tokens])
    for name in ("input_norm", "post_norm"):
        modules[name] = _with_scatter([columns["layernorm"][n] for n in tokens])
    once = [columns["embedding"][n] + columns["final_layernorm"][n] for n in tokens]
    modules["embedding"] = _with_scatter(once)
    return {"tp": {"1": {"tokens": tokens, "modules": modules}}}


def _with_scatter(values: list[float]) -> dict[str, Any]:
    """The deviation of each point from the middle of its neighbours, a robust mean over all."""
    errors = [
        abs(b / median((a, b, c)) - 1)
        for a, b, c in zip(values, values[1:], values[2:], strict=False)
    ]
    relative = max(1.4826 * median(errors), 0.002)
    return {
        "us": [_round(v) for v in values],
        "std_us": [_round(v * relative) for v in values],
    }


def attention_rtx(rows: Rows) -> dict[str, Any]:
    """Fused attention on a full grid of (chunk, history, decodes, context)."""
    cells = {
        tuple(int(row[k]) for k in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")): float(
            row["time_us"]
        )
        for row in rows
    }
    mixed = [
        [
            [cells[c, h, 0, 0]]
            + [cells[c, h, n, k] for n in _FUSED_DECODES for k in _FUSED_CONTEXT]
            for h in _FUSED_HISTORY
        ]
        for c in _FUSED_CHUNKS
    ]
    counts = (*_FUSED_DECODES, 256)
    contexts = sorted({k for c, _, _, k in cells if c == 0})
    return {
        "chunk": _FUSED_CHUNKS,
        "history": _FUSED_HISTORY,
        "decodes": _FUSED_DECODES,
        "context": _FUSED_CONTEXT,
        "us": [[[_round(us) for us in row] for row in plane] for plane in mixed],
        "pure_decodes": counts,
        "pure_context": contexts,
        "pure_us": [
            [_round(cells[0, 0, n, k]) if (0, 0, n, k) in cells else None for k in contexts]
            for n in counts
        ],
        "relative_std": 0.01,
        "relative_std_mark": "declared: the source gives one value a shape",
    }


def skew_rtx(rows: Rows) -> dict[str, Any]:
    """How far an uneven batch lies from its mean context towards its longest, by (n, share).

    ``share`` is (mean - shortest) / (longest - shortest); a cell is the least-squares slope.
    """
    made: dict[str, Any] = {}
    for kind in ("pure", "mixed"):
        sums: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in rows:
            if row["regime"] != kind:
                continue
            span = float(row["t_max_us"]) - float(row["t_mean_us"])
            share = (float(row["kv_mean"]) - float(row["kvs"])) / (
                float(row["kv_big"]) - float(row["kvs"])
            )
            column = sum(share >= edge for edge in _ALPHA_SHARES) - 1
            cell = sums[int(row["n"]), column]
            cell[0] += (float(row["t_skew_us"]) - float(row["t_mean_us"])) * span
            cell[1] += span * span
        counts = sorted({n for n, _ in sums})
        made[kind] = {
            "sequences": counts,
            "alpha": [
                _filled([sums.get((n, i)) for i in range(len(_ALPHA_SHARES))]) for n in counts
            ],
        }
    return {"shares": _ALPHA_SHARES, **made}


def _filled(sums: Sequence[Sequence[float] | None]) -> list[float]:
    """Slopes; a share that was not measured takes the nearest one that was."""
    known = {i: cell[0] / cell[1] for i, cell in enumerate(sums) if cell and cell[1] > 0}
    made = []
    for i in range(len(sums)):
        _, nearest = min((abs(k - i), k) for k in known)
        made.append(_round(min(max(known[nearest], 0.0), 1.0)))
    return made


def per_sequence_rtx(rows: Rows) -> dict[str, Any]:
    """lm_head and sampler by number of sequences."""
    columns: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        columns[row["layer"]][int(row["sequences"])] = float(row["time_us"])
    counts = sorted(columns["lm_head"])
    return {
        "sequences": counts,
        **{name: [_round(columns[name][n]) for n in counts] for name in ("lm_head", "sampler")},
    }


def network(rows: Rows, op: str) -> dict[str, Any]:
    """Medians within half an octave of message size; workers all in one server.

    Small messages were measured with two clocks' worth of times: a running median of five sizes,
    kept from falling, is what stands for them.
    """
    found: dict[str, Any] = {}
    for workers in sorted({int(row["num_workers"]) for row in rows}):
        bins: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for row in rows:
            one_server = op == "send_recv" or int(row["devices_per_node"]) == workers
            if int(row["num_workers"]) == workers and one_server:
                size = int(row["size"])
                us = float(row[f"time_stats.{op}.median"]) * 1e3
                bins[(size * size).bit_length()].append((size, us))
        if bins:
            middle = [
                (median(s for s, _ in cells), median(us for _, us in cells))
                for _, cells in sorted(bins.items())
            ]
            times = [us for _, us in middle]
            calm = [median(times[max(i - 2, 0) : i + 3]) for i in range(len(times))]
            found[str(workers)] = {
                "bytes": [round(size) for size, _ in middle],
                "us": [_round(us) for us in accumulate(calm, max)],
            }
    return found


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return _round(sum(values) / len(values))


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def write(name: str, origin: Mapping[str, str], content: Mapping[str, Any], out: Path) -> None:
    """One data file: innermost lists on one line each."""
    text = json.dumps({**origin, **content}, separators=(",", ":"))
    text = text.replace("],[", "],\n[").replace("},", "},\n")
    (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


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
        write(f"dense-a100-{model}", _VIDUR, dense_vidur(rows, degrees), out)
    rows = read(a100 / "Llama-2-70b-hf_tp2_attention.csv.gz")
    write("attention-a100", _VIDUR, attention_vidur(rows), out)
    links = {
        op: network(read(a100 / f"network_dgx_{op}.csv.gz"), op)
        for op in ("all_reduce", "send_recv")
    }
    write("network-dgx-a100", _VIDUR, links, out)
    rows = read(raw / "vidur_a30/Qwen-2-7B_mlp.csv.gz")
    write("dense-a30-qwen-2-7b", _VIDUR_A30, dense_vidur(rows, (1,)), out)
    rows = read(raw / "vidur_a30/Qwen-2-7B_attention.csv.gz")
    write("attention-a30", _VIDUR_A30, attention_vidur(rows), out)
    stem = "Llama-3.1-8B_tp1"
    dense = dense_rtx(read(rtx / f"{stem}_dense.csv.gz"))
    write("dense-rtx-pro-6000-llama-3.1-8b", _RTX, dense, out)
    fused = attention_rtx(read(rtx / f"{stem}_attention.csv.gz"))
    write("attention-rtx-pro-6000", _RTX, fused, out)
    write("skew-rtx-pro-6000", _RTX, skew_rtx(read(rtx / f"{stem}_skew.csv.gz")), out)
    sequences = per_sequence_rtx(read(rtx / f"{stem}_per_sequence.csv.gz"))
    write("per-sequence-rtx-pro-6000", _RTX, sequences, out)
    coefficients = json.loads((raw / "distserve/a100_coefficients.json").read_text())
    write("coefficients-a100-opt-13b", _DISTSERVE, coefficients["facebook/opt-13b"], out)


if __name__ == "__main__":
    main()
