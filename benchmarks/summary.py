"""The README's figures as Markdown, made from `benchmarks/results/*.json` and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.claims import RESULTS, Claim, read_results
from benchmarks.papers.paper import PAPERS

WORKLOADS = {
    "trace": "Conversations in the style of a public trace, batch over 40 shared documents",
    "pressure": "Under KV pressure: eight-turn conversations, batch over 120 shared documents",
}
# What the README shows besides co-location: durability, and each component at its size.
HEADLINES = (
    *(
        f"faults/{victim}/{what}"
        for victim in ("agent", "controlplane", "engine")
        for what in ("kills", "lost", "doubled")
    ),
    "operator/observed/share",
    "operator/steady/writes",
    "plan/p99-10000",
    "plan/p99-50000",
    "bridge/time-per-token",
    "bridge/one-client-mean-tbt",
    "ingest/time",
    "sync/p99",
    "tree/build",
)
RESULTS_PAGE = "docs/results.md"
# Co-location again, on machines of another speed: what holds on one must hold on them.
OTHER_HOSTS = "other-hosts"
_CLAIM_HEADER = ("claim", "measured", "target", "")


def readme(folder: Path = RESULTS) -> str:
    """The generated part of the README; empty without result files."""
    path = folder / "colocation.json"
    parts = _colocation(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []
    claims = _all_claims(folder)
    if claims:
        by_id = {claim.id: claim for claim in claims}
        parts.append(_table_of(by_id[name] for name in HEADLINES if name in by_id))
        parts.append(f"{_count(claims)}: [all of them]({RESULTS_PAGE}).{_of_papers(folder)}\n")
    return "\n".join(parts)


def results_page(folder: Path = RESULTS) -> str:
    """Every claim that has no page of its own, a table for each result file."""
    parts = [f"{_count(_all_claims(folder))}.\n"]
    for path in _files(folder):
        command = json.loads(path.read_text(encoding="utf-8"))["command"]
        parts += [f"## {path.stem}\n", f"`{command}`\n", _table_with_ids(read_results(path))]
    for path in sorted((folder / OTHER_HOSTS).glob("colocation*.json")):
        claims = read_results(path)
        parts += [f"## {path.stem}, on another host\n", f"{_count(claims)} there.\n"]
        parts += _colocation(json.loads(path.read_text(encoding="utf-8")))
        parts.append(_table_with_ids(claims))
    return "\n".join(parts)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.json")) if path.stem not in PAPERS]


def _all_claims(folder: Path) -> list[Claim]:
    return [claim for path in _files(folder) for claim in read_results(path)]


def _count(claims: Iterable[Claim]) -> str:
    met, judged = _met(claims)
    return f"{met} of the {judged} claims that have a target meet it"


def _met(claims: Iterable[Claim]) -> tuple[int, int]:
    """How many claims meet their target, and how many have one."""
    judged = [claim.met for claim in claims if claim.met is not None]
    return sum(judged), len(judged)


def _of_papers(folder: Path) -> str:
    """How many claims on the papers' own pages are met, which the count before leaves out."""
    there = [name for name in PAPERS if (folder / f"{name}.json").exists()]
    if not there:
        return ""
    claims = [claim for name in there for claim in read_results(folder / f"{name}.json")]
    pages = ", ".join(f"[{name}](docs/papers/{name}.md)" for name in there)
    met, judged = _met(claims)
    return (
        f" Of the papers' headlines in the simulator, and Weir's beside them, {met} of {judged} "
        f"do: {pages}."
    )


def _colocation(content: Mapping[str, Any]) -> list[str]:
    machine = content["machine"]
    parts = [
        (
            f"Offline tokens/s served on real vLLM over HTTP, {_device(machine)}, "
            f"windows of {content['window']['measure_s']:.0f} s; "
            "a figure in brackets misses its SLO. "
            f"`{content['command']}`\n"
        )
    ]
    for workload, given in content["workloads"].items():
        bound = given["bound"]
        ceiling = bound["ceiling_per_s"] if bound else None
        parts.append(f"**{WORKLOADS.get(workload, workload)}**" + _ceiling(bound) + "\n")
        rows = [_row(cell, ceiling) for cell in given["cells"]]
        header = (
            "SLO over online-only",
            "best static arm",
            "best gateway AIMD",
            "Weir",
            "of ceiling",
            "of bound",
        )
        parts.append(_table(header, rows))
    return parts


def _device(machine: Mapping[str, Any]) -> str:
    host = f"{machine['processor']}, {machine['cores']} cores"
    return ", ".join([*machine.get("gpus", ()), host])


def _ceiling(bound: Mapping[str, Any] | None) -> str:
    if bound is None:
        return ""
    return (
        f" (ceiling {bound['ceiling_per_s']:,.0f}, c0 {1e3 * bound['c0_s']:.1f} ms, "
        f"u {bound['online_share']:.0%})"
    )


def _row(cell: Mapping[str, Any], ceiling: float | None) -> tuple[str, ...]:
    weir = cell["arms"].get("weir")
    best = cell["best_static"]
    static = f"{cell['arms'][best]['served']['mean']:,.0f} ({best})" if best else "none holds"
    served = weir["served"]["mean"] if weir else 0.0
    return (
        cell["cell"].replace("/", " +"),
        static,
        _gateway(cell),
        _served(weir),
        f"{served / ceiling:.0%}" if weir and ceiling else "-",
        f"{served / cell['bound_per_s']:.0%}" if weir and cell["bound_per_s"] else "-",
    )


def _gateway(cell: Mapping[str, Any]) -> str:
    """Files of passes with one AIMD arm do not name the best."""
    best = cell.get("best_gateway") or "aimd"
    served = _served(cell["arms"].get(best))
    return served if best == "aimd" else f"{served} ({best})"


def _served(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "-"
    text = f"{verdict['served']['mean']:,.0f}"
    return text if verdict["holds"] else f"[{text}]"


def _table_of(claims: Iterable[Claim]) -> str:
    return _table(_CLAIM_HEADER, (_claim_row(claim) for claim in claims))


def _table_with_ids(claims: Iterable[Claim]) -> str:
    rows = ((f"`{claim.id}`", *_claim_row(claim)) for claim in claims)
    return _table(("id", *_CLAIM_HEADER), rows)


def _claim_row(claim: Claim) -> tuple[str, ...]:
    return (
        claim.what,
        "not measured" if claim.value is None else f"{claim.value:.3g} {claim.unit}",
        claim.target or "-",
        {True: "met", False: "**not met**", None: "-"}[claim.met],
    )


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
