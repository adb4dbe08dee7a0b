#!/usr/bin/env bash
# Every benchmark, one after the other: each writes benchmarks/results/NAME.json. Hours on two
# cores; one alone: .venv/bin/python -m benchmarks.NAME --help
set -euo pipefail
cd "$(dirname "$0")/.."
for name in plan_latency bridge_overhead ingest sync operator faults colocation; do
    printf '\n== %s\n' "$name"
    .venv/bin/python -m "benchmarks.$name"
done
.venv/bin/python -m benchmarks.claims
