#!/bin/sh
# Make the project's environment in .venv when it is missing, moved, broken or older than pyproject.toml.
#   environment.sh run   the product and its embedded servers
#   environment.sh dev   the same with tests and tools
# Needs Python 3.11-3.14 with pip, or uv. uv is fetched beside the project: `pip install --target`
# is allowed on every system (PEP 668) and leaves nothing outside this folder.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)
kind=$1

fail() {
    echo "steadyrun: $1" >&2
    exit 1
}

is_current() { # a stamp names the folder the environment was made for
    [ -x .venv/bin/python ] && [ "$(cat ".venv/$kind.stamp" 2>/dev/null)" = "$here" ] &&
        [ ! pyproject.toml -nt ".venv/$kind.stamp" ]
}

find_python() {
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if $candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

find_uv() {
    if command -v uv >/dev/null 2>&1; then
        echo uv
        return
    fi
    [ -n "$python" ] || fail "no Python 3.11-3.14 found: install one of them, or uv"
    [ -x .uv/bin/uv ] || echo "steadyrun: fetching uv into .uv (once)" >&2
    [ -x .uv/bin/uv ] ||
        "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .uv uv >&2 ||
        fail "cannot fetch uv with '$python -m pip': install pip or uv, and see that a package index is reachable"
    echo .uv/bin/uv
}

is_current && exit 0
[ ! -e .venv ] || [ -O .venv ] ||
    fail ".venv belongs to another user: remove it (rm -rf .venv) or run as that user"
[ -w . ] || fail "the folder $here cannot be written by $(id -un): clone the project as that user"
[ -w "${HOME:-/nonexistent}" ] || export UV_CACHE_DIR="$here/.uv/cache" PIP_NO_CACHE_DIR=1
unset VIRTUAL_ENV
made_for=$(cat .venv/run.stamp 2>/dev/null || echo "$here")
[ "$made_for" = "$here" ] || rm -rf .venv # its scripts name the old folder

python=$(find_python)
uv=$(find_uv)
set -- --quiet --compile-bytecode # also where PYTHONDONTWRITEBYTECODE would make every start slow
[ -z "$python" ] || set -- "$@" --python "$python"
if [ "$kind" = run ]; then
    set -- "$@" --inexact --no-dev --extra embedded
fi
echo "steadyrun: making the environment in .venv, which takes a minute (once, and when pyproject.toml changes)" >&2
"$uv" sync "$@" || fail "the environment could not be made: see the lines above"
echo "$here" >.venv/run.stamp
[ "$kind" = run ] || echo "$here" >.venv/dev.stamp
