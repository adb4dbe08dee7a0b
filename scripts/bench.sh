#!/usr/bin/env bash
# Every benchmark that writes benchmarks/results/NAME.json, one after the other: hours on two cores.
# Those of the papers and of the prefix tree need the folder of traces: DATA=FOLDER make bench.
# One alone: .venv/bin/python -m benchmarks.NAME --help
set -euo pipefail
cd "$(dirname "$0")/.."
run() {
    printf '\n== %s\n' "$*"
    .venv/bin/python -m "benchmarks.$@"
}
for name in plan_latency ingest sync operator faults latency_model weir_parts; do
    run "$name"
done
run bridge_overhead --keep-awake
run sim_speed --seconds 400 --seeds 3
if [[ -n ${DATA:-} ]]; then
    run tree --data "$DATA"
    run papers all --data "$DATA"
else
    echo 'tree and papers are NOT run: DATA names no folder of traces' >&2
fi
run fidelity --keep-awake --repeats 4
run colocation --keep-awake
.venv/bin/python -m benchmarks.claims
