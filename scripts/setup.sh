#!/usr/bin/env bash
# Makes the development environment: system packages that are missing, uv, .venv from the lock,
# and Weir itself (editable). Safe to repeat; a second run changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

say() {
    printf 'setup: %s\n' "$*" >&2
}

# --- Python -------------------------------------------------------------------------------------
python=${PYTHON:-python3}
command -v "$python" >/dev/null ||
    fail "$python is missing: install Python 3.11, 3.12 or 3.13, or name one with PYTHON=/path/to/python"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
    fail "$("$python" --version) is not supported: install Python 3.11, 3.12 or 3.13, or name one with PYTHON=/path/to/python"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module: install it (Debian: apt-get install python3-venv)"
case "$(uname -s)-$(uname -m)" in
    Linux-x86_64 | Linux-aarch64) ;;
    *) fail "$(uname -s) on $(uname -m) is not supported: the CPU build of vLLM needs Linux on x86_64 or aarch64" ;;
esac

# --- System packages: servers that the tests start, and a library that vLLM loads -----------------
has_postgres() {
    command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

has_numa() {
    "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null
}

missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v promtool >/dev/null || missing+=(prometheus)
has_postgres || missing+=(postgresql)
has_numa || missing+=(libnuma1)

if ((${#missing[@]})); then
    command -v apt-get >/dev/null ||
        fail "missing: ${missing[*]} (Debian names). This system has no apt-get: install Redis 7+, PostgreSQL 14+, Prometheus 2.40+ and libnuma with its own package manager, then run this again"
    root=()
    if ((EUID != 0)); then
        sudo -n true 2>/dev/null ||
            fail "missing: ${missing[*]}. Run: sudo apt-get update && sudo apt-get install -y ${missing[*]}"
        root=(sudo -n)
    fi
    say "installing Debian packages: ${missing[*]}"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # RUNLEVEL=1: the packages' own services stay stopped; the tests start private servers.
    "${root[@]}" apt-get update >"$log" 2>&1 &&
        "${root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1 </dev/null || {
        tail -n 20 "$log" >&2
        fail "could not install ${missing[*]} (the end of apt-get's output is above)"
    }
    command -v redis-server >/dev/null || fail "redis-server is still missing after its installation"
    command -v promtool >/dev/null || fail "promtool is still missing after the installation of prometheus"
    has_postgres || fail "initdb is still missing after the installation of postgresql"
    has_numa || fail "libnuma.so.1 is still missing after the installation of libnuma1"
fi

# --- uv, then everything else from the lock -------------------------------------------------------
uv=.cache/uv/bin/uv
if ! [[ -x $uv ]] || ! cmp -s requirements/bootstrap.txt .cache/uv/bootstrap.txt; then
    say "installing uv"
    "$python" -m venv --clear .cache/uv
    .cache/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
        --requirement requirements/bootstrap.txt
    cp requirements/bootstrap.txt .cache/uv/bootstrap.txt
fi

export UV_NO_PROGRESS=1
if ! .venv/bin/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    say "making .venv"
    "$uv" venv --quiet --clear --python "$python" .venv
fi
say "installing the locked packages (first time: about 1.5 GB to download, 6 GB on disk)"
# Compiled at once: vLLM's import takes twice the time without, at every start of an engine, and it
# would stay so where PYTHONDONTWRITEBYTECODE is set.
"$uv" pip sync --quiet --compile-bytecode --python .venv/bin/python --require-hashes \
    requirements/dev.txt
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
touch .venv/.weir-setup
say "done"
