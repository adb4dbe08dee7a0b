"""A paper's page as Markdown, made from its result file and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.claims import RESULTS, Claim, read_results


def page(name: str, folder: Path = RESULTS) -> str:
    """The generated part of `docs/papers/NAME.md`; says so where there is no result yet."""
    path = folder / f"{name}.json"
    if not path.exists():
        return "Not measured yet.\n"
    content = json.loads(path.read_text(encoding="utf-8"))
    parts = [f"{note}\n" for note in content.get("notes", ())]
    parts.append(f"`{content['command']}`, seeds {', '.join(map(str, content['seeds']))}\n")
    parts.append(_claims(read_results(path)))
    for table in content.get("tables", ()):
        parts.append(f"**{table['title']}**\n")
        parts.append(_table(table["header"], table["rows"]))
    return "\n".join(parts)


def _claims(claims: Iterable[Claim]) -> str:
    mark = {True: "met", False: "**not met**", None: "-"}
    rank = {False: 0, True: 1, None: 2}
    return _table(
        ("claim", "measured", "smallest to largest", "target", ""),
        [
            (
                claim.what,
                "not measured" if claim.value is None else f"{claim.value:.3g} {claim.unit}",
                "-" if claim.low is None else f"{claim.low:.3g} to {claim.high:.3g}",
                claim.target or "-",
                mark[claim.met],
            )
            for claim in sorted(claims, key=lambda claim: rank[claim.met])
        ],
    )


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = tuple(header)
    lines = [names, ("---",) * len(names), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
