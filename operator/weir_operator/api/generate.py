"""Writes the CRDs: `python -m weir_operator.api.generate crds`; `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from weir_operator.api.crd import DEFINITIONS, GROUP, manifest

HEADER = "# Generated from weir_operator/api by `make crds`; changes here are overwritten.\n"


def rendered() -> dict[str, str]:
    """The text of each CRD's file, by its name."""
    return {
        f"{GROUP}_{definition.plural}.yaml": HEADER
        + yaml.safe_dump(manifest(definition), sort_keys=False, width=100, allow_unicode=True)
        for definition in DEFINITIONS
    }


def stale(folder: Path) -> list[str]:
    """Names of files in ``folder`` that are not what the models say, or should not be there."""
    wanted = rendered()
    there = {path.name: path.read_text() for path in sorted(folder.glob("*.yaml"))}
    return sorted(
        name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name)
    )


def main() -> int:
    """Writes or checks; 1 when a file is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="compare only")
    given = parser.parse_args()
    names = stale(given.folder)
    if given.check:
        for name in names:
            sys.stderr.write(f"{given.folder / name}: differs from the models: run make crds\n")
        return int(bool(names))
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (given.folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
