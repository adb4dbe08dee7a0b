"""Compiles the hot modules of the engine with mypyc into build/compiled: `make compiled`.

The folder is a copy of `weir_engine` with extension modules beside the sources; what has it on
PYTHONPATH runs compiled. Needs a C compiler, which nothing else of Weir does.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "node_agent" / "weir_engine"
COMPILED = ROOT / "build" / "compiled"
# What every step of a simulation and every plan runs through.
_HOT = (
    "config.py",
    "ids.py",
    "request.py",
    "kv/*.py",
    "latency/*.py",
    "latency/models/*.py",
    "sched/*.py",
    "pool/fairness.py",
    "pool/lane.py",
    "pool/length_buckets.py",
    "pool/offline_pool.py",
    "pool/prefix_tree.py",
    "pool/simple_orders.py",
    "pool/sorted_queue.py",
    "sim/batch.py",
    "sim/clock.py",
    "sim/cost.py",
    "sim/engine.py",
    "sim/events.py",
    "sim/hashes.py",
    "sim/loop.py",
    "sim/profile_cost.py",
    "sim/profiles/attention.py",
    "sim/profiles/hardware.py",
    "sim/profiles/tables.py",
    "sim/profiles/timing.py",
    "sim/records.py",
    "sim/workload.py",
)
# `runtime_checkable` does not take a compiled class; a package's own file stays a plain one.
_INTERPRETED = ("kv/view.py", "sched/piggyback.py")


def hot_modules(engine: Path = ENGINE) -> list[str]:
    """Paths of the modules to compile, relative to the folder that has the package."""
    found = {path for pattern in _HOT for path in engine.glob(pattern)}
    left_out = {engine / name for name in _INTERPRETED}
    kept = [path for path in found - left_out if path.name != "__init__.py"]
    return sorted(str(path.relative_to(engine.parent)) for path in kept)


def translate(folder: Path, target: Path) -> list[Extension]:
    """The extension modules of the package in ``folder``, as C under ``target``.

    Raises:
        SystemExit: mypyc cannot compile a module; it has printed which and why.
    """
    os.chdir(folder)  # module names are paths from here
    flags = ["--config-file=", f"--cache-dir={target / 'cache'}"]
    return mypycify(
        [*flags, *hot_modules(folder / ENGINE.name)],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        target_dir=str(target / "c"),
        group_name=ENGINE.name,
    )


def main() -> None:
    """Copies the package, compiles it, and puts it in place when all of it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--translate", type=Path, help="only write C to this folder: no compiler")
    given = parser.parse_args()
    if given.translate:
        translate(ENGINE.parent, given.translate.resolve())
        return
    work = COMPILED.with_name("work")
    shutil.rmtree(work, ignore_errors=True)
    package = work / "package"
    shutil.copytree(ENGINE, package / ENGINE.name, ignore=shutil.ignore_patterns("__pycache__"))
    extensions = translate(package, work)
    folders = ["--build-lib", str(package), "--build-temp", str(work / "objects")]
    setup(
        name="weir-engine-compiled",
        packages=[],
        ext_modules=extensions,
        script_args=["--quiet", "build_ext", *folders],
    )
    shutil.rmtree(COMPILED, ignore_errors=True)
    package.rename(COMPILED)
    shutil.rmtree(work)
    print(f"PYTHONPATH={COMPILED.relative_to(ROOT)} runs the compiled engine")


if __name__ == "__main__":
    main()
