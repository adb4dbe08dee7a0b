"""Tables of vidur's profiles: one CSV row a measured shape, times in milliseconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any

from scripts.profiles.tables import Rows, mean, rounded

_MODULES = {
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


def dense(rows: Rows, degrees: Sequence[int]) -> dict[str, Any]:
    """Medians and standard deviations by module and number of tokens, one table a TP degree."""
    made: dict[str, Any] = {}
    dropped = 0
    for degree in degrees:
        mine = [row for row in rows if int(row["num_tensor_parallel_workers"]) == degree]
        modules: dict[str, Any] = {}
        for op, name in (*_MODULES.items(), ("emb", "embedding")):
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
    return {"us": [rounded(v) for v, _ in values], "std_us": [rounded(s) for _, s in values]}


def attention(rows: Rows) -> dict[str, Any]:
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
            "us": [[mean(decode[n, c]) for c in contexts] for n in counts],
            "relative_std": rounded(median(spread["decode"])),
        },
        "prefill": [
            {
                "chunk": chunk,
                "history": sorted(cells),
                "us": [mean(cells[h]) for h in sorted(cells)],
            }
            for chunk, cells in sorted(prefill.items())
        ],
        "prefill_relative_std": rounded(median(spread["prefill"])),
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
                "us": [rounded(us) for us in accumulate(calm, max)],
            }
    return found
