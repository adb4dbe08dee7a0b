#!/usr/bin/env bash
# Builds the images of the components with docker, podman or buildah, whichever is there.
#
#   images/build.sh [COMPONENT ...]     default: operator controlplane agent
#
# REGISTRY       prefix of the names, with its closing slash; default: none
# TAG            default: the chart's appVersion
# BASE           base of operator and control plane; default: in their Dockerfiles
# AGENT_BASE     base of the agent, with vLLM in it; default: in its Dockerfile
# BUILDER        the command that builds, with options; default: the first that is found
# BUILD_OPTIONS  further options of the build, split at spaces
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'images: %s\n' "$*" >&2
    exit 1
}

if [[ -z ${BUILDER:-} ]]; then
    if command -v docker >/dev/null && docker version >/dev/null 2>&1; then
        BUILDER="docker build"
    elif command -v podman >/dev/null; then
        BUILDER="podman build"
    elif command -v buildah >/dev/null; then
        BUILDER="buildah build"
    else
        fail "neither docker, podman nor buildah is here: install one, or name another in BUILDER"
    fi
fi
read -ra builder <<<"$BUILDER"
read -ra options <<<"${BUILD_OPTIONS:-}"
tag=${TAG:-$(sed -n 's/^appVersion: *//p' charts/weir/Chart.yaml)}

(($#)) || set -- operator controlplane agent
for component in "$@"; do
    file=images/$component.Dockerfile
    [[ -f $file ]] || fail "$component: there is no $file"
    base=${BASE:-}
    [[ $component != agent ]] || base=${AGENT_BASE:-}
    "${builder[@]}" "${options[@]}" ${base:+--build-arg "BASE=$base"} \
        --file "$file" --tag "${REGISTRY:-}weir-$component:$tag" .
done
