"""Rows of raw measurements in, tables of the package out, and the rounding of both."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Rows = list[dict[str, str]]


def read(path: Path) -> Rows:
    """The rows of a gzip-compressed CSV file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def write(name: str, origin: Mapping[str, str], content: Mapping[str, Any], out: Path) -> None:
    """One data file: innermost lists on one line each."""
    text = json.dumps({**origin, **content}, separators=(",", ":"))
    text = text.replace("],[", "],\n[").replace("},", "},\n")
    (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def mean(values: Iterable[float]) -> float:
    """The mean to four digits."""
    values = list(values)
    return rounded(sum(values) / len(values))


def rounded(value: float) -> float:
    """Four digits: more were not measured."""
    return float(f"{value:.4g}")
