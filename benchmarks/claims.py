"""What benchmarks claim: one schema, one rule for `met`, one printer (`make claims`).

Every `benchmarks/results/NAME.json` holds `{machine, commit, command, seeds, claims, …}`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, describe_machine

RESULTS = Path(__file__).resolve().parent / "results"
_TARGET = re.compile(r"^(>=|<=|==) (-?\d+(?:\.\d+)?)$")
_ID = re.compile(r"^[a-z][a-z0-9-]*(/[a-z0-9.%-]+)+$")
_HEADER = ("machine", "commit", "command", "seeds", "claims")


class ClaimError(Exception):
    """A result file breaks the schema; the message names file, claim and field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One measured figure and what it should be.

    ``low`` and ``high`` are its spread over repeats. ``baseline`` is what it is compared with, in
    ``unit``, or None. ``target`` reads like ``">= 0.95"`` in ``unit``; None only reports. ``value``
    None: it could not be measured, which meets no target.

    Raises:
        ClaimError: an id, a target or a number that the schema does not allow.
    """

    id: str
    what: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    baseline: float | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        if not _ID.match(self.id):
            raise ClaimError(f"claim id {self.id!r}: give lower-case parts joined by /")
        if self.target is not None and not _TARGET.match(self.target):
            raise ClaimError(f"{self.id}: target {self.target!r} must read like '>= 0.95'")
        for name in ("value", "low", "high", "baseline"):
            number = getattr(self, name)
            if number is not None and not isfinite(number):
                raise ClaimError(f"{self.id}: {name} is {number}: give a finite number or null")

    @property
    def met(self) -> bool | None:
        """Whether ``value`` meets ``target``; None where there is no target."""
        return met(self.value, self.target)

    def to_json(self) -> dict[str, Any]:
        """The claim as it stands in a result file, ``met`` included."""
        return {**asdict(self), "met": self.met}


def met(value: float | None, target: str | None) -> bool | None:
    """The one rule: ``value`` compared with ``target``; None without a target.

    Raises:
        ClaimError: a target of another form.
    """
    if target is None:
        return None
    found = _TARGET.match(target)
    if found is None:
        raise ClaimError(f"target {target!r} must read like '>= 0.95'")
    if value is None:
        return False
    bound = float(found.group(2))
    return {">=": value >= bound, "<=": value <= bound, "==": value == bound}[found.group(1)]


def write_results(
    name: str,
    claims: Sequence[Claim],
    *,
    command: str,
    seeds: Sequence[int],
    folder: Path = RESULTS,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Writes `results/NAME.json`; ``more`` is added beside the schema's own fields.

    Raises:
        ClaimError: two claims have one id.
    """
    ids = [claim.id for claim in claims]
    twice = sorted({claim_id for claim_id in ids if ids.count(claim_id) > 1})
    if twice:
        raise ClaimError(f"{name}: claim ids are used twice: {', '.join(twice)}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {
        "machine": describe_machine(),
        "commit": commit(),
        "command": command,
        "seeds": list(seeds),
        "claims": [claim.to_json() for claim in claims],
        **(more or {}),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def read_results(path: Path) -> list[Claim]:
    """The claims of a result file, checked.

    Raises:
        ClaimError: the file is no JSON, lacks a field, or says another ``met`` than the rule.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ClaimError(f"{path.name}: not JSON: {error}") from None
    missing = [name for name in _HEADER if name not in content]
    if missing:
        raise ClaimError(f"{path.name}: lacks {', '.join(missing)}: run its benchmark again")
    return [_read_claim(path, index, entry) for index, entry in enumerate(content["claims"])]


def _read_claim(path: Path, index: int, entry: Mapping[str, Any]) -> Claim:
    given = dict(entry)
    said = given.pop("met", None)
    try:
        claim = Claim(**given)
    except TypeError as error:
        raise ClaimError(f"{path.name}: claim {index}: {error}") from None
    if claim.met != said:
        raise ClaimError(
            f"{path.name}: {claim.id}: met is {said}, but {claim.value} against "
            f"{claim.target!r} is {claim.met}: run its benchmark again"
        )
    return claim


def render(claims: Iterable[Claim]) -> str:
    """A table of all claims, the unmet first, those without a target last."""
    rank = {False: 0, True: 1, None: 2}
    lines = []
    for claim in sorted(claims, key=lambda claim: (rank[claim.met], claim.id)):
        mark = {False: "UNMET", True: "met", None: "-"}[claim.met]
        spread = "" if claim.low is None else f" [{_number(claim.low)}, {_number(claim.high)}]"
        lines.append(
            f"{mark:<6}{claim.id:<40}{_number(claim.value):>10} {claim.unit}{spread}"
            f"  target {claim.target or 'none'}  {claim.what}"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints all claims; 1 when a file breaks the schema. Unmet claims are reported, not failed."""
    parser = argparse.ArgumentParser(description="what the benchmarks claim, the unmet first")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of result files")
    given = parser.parse_args(arguments)
    claims: list[Claim] = []
    broken = 0
    for path in sorted(given.results.glob("*.json")):
        try:
            claims.extend(read_results(path))
        except ClaimError as error:
            broken += 1
            print(f"claims: {error}", file=sys.stderr)
    print(render(claims) if claims else f"no claims under {given.results}")
    unmet = sum(claim.met is False for claim in claims)
    print(f"\n{len(claims)} claims, {unmet} unmet, {broken} broken files")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
