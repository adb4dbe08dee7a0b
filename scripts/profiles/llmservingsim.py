"""Tables of LLMServingSim's profiles of vLLM: fused attention, uneven batches, one time a shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from scripts.profiles.tables import Rows, rounded

_MODULES = {
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


def dense(rows: Rows) -> dict[str, Any]:
    """The same table as vidur's; the source has no deviations: scatter stands in for them."""
    columns: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        columns[row["layer"]][int(row["tokens"])] = float(row["time_us"])
    tokens = sorted(columns["act_fn"])
    modules = {}
    for layer, name in _MODULES.items():
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
        "us": [rounded(v) for v in values],
        "std_us": [rounded(v * relative) for v in values],
    }


def attention(rows: Rows) -> dict[str, Any]:
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
        "us": [[[rounded(us) for us in row] for row in plane] for plane in mixed],
        "pure_decodes": counts,
        "pure_context": contexts,
        "pure_us": [
            [rounded(cells[0, 0, n, k]) if (0, 0, n, k) in cells else None for k in contexts]
            for n in counts
        ],
        "relative_std": 0.01,
        "relative_std_mark": "declared: the source gives one value a shape",
    }


def skew(rows: Rows) -> dict[str, Any]:
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
        made.append(rounded(min(max(known[nearest], 0.0), 1.0)))
    return made


def per_sequence(rows: Rows) -> dict[str, Any]:
    """lm_head and sampler by number of sequences."""
    columns: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        columns[row["layer"]][int(row["sequences"])] = float(row["time_us"])
    counts = sorted(columns["lm_head"])
    return {
        "sequences": counts,
        **{name: [rounded(columns[name][n]) for n in counts] for name in ("lm_head", "sampler")},
    }
