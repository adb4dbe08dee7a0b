"""The table of who may do what, as docs/kubernetes.md has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
HEADER = "| ServiceAccount | where | API group | resource | names | verbs |"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One rule. ``names`` empty: every object."""

    account: str
    scope: str
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    names: tuple[str, ...]
    verbs: tuple[str, ...]


def read() -> list[Row]:
    """The rows of the page."""
    lines = PAGE.read_text().split(HEADER, 1)[1].strip().splitlines()[1:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        account, scope, groups, resources, names, verbs = (
            tuple(re.findall(r"[^\s,`]+", cell)) for cell in line.strip("| ").split("|")
        )
        rows.append(
            Row(
                account=account[0],
                scope=" ".join(scope),
                groups=groups,
                resources=resources,
                names=() if names == ("all",) else names,
                verbs=verbs,
            )
        )
    return rows
