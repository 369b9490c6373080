#!/usr/bin/env bash
# Installs what the tests and the demo require: CMake, Ninja, other safetensors readers, valgrind, strace, pkg-config
# and abigail-tools. Requires a Rust toolchain, a C++ compiler and Python 3.
#
# If it is sourced, it exports CMAKE, CTEST, NINJA, PYTHON, and PYTHON_OLD, which has an older MLX. If it is executed,
# it prints them. A second run changes nothing.
set -euo pipefail

safealign_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
safealign_venv=$safealign_root/build/venv

# Prints to standard error, because standard output is for the variables.
safealign_say() {
    printf 'setup: %s\n' "$*" >&2
}

safealign_debian_packages() {
    local missing=()
    command -v valgrind >/dev/null || missing+=(valgrind)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    command -v strace >/dev/null || missing+=(strace)
    command -v abidw >/dev/null || missing+=(abigail-tools)
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    if [ ${#missing[@]} -eq 0 ]; then
        return
    fi
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        safealign_say "please install ${missing[*]}; tests that require them are skipped"
        return
    fi
    safealign_say "installing ${missing[*]}"
    {
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y "${missing[@]}"
    } >&2
}

# safealign_python VENV REQUIREMENTS: creates the virtual environment build/VENV from scripts/REQUIREMENTS.
safealign_python() {
    local venv=$safealign_root/build/$1 requirements=$safealign_root/scripts/$2 stamp wanted
    stamp=$venv/requirements.stamp
    wanted=$(cat "$requirements")
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        return
    fi
    safealign_say "creating build/$1"
    rm -rf "$venv"
    mkdir -p "$safealign_root/build"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2
    # Last, so that an interrupted run is repeated.
    printf '%s\n' "$wanted" >"$stamp"
}

# The system's program if its version is at least the second argument, otherwise that of the virtual environment.
safealign_tool() {
    local found version
    if found=$(command -v "$1") && version=$("$found" --version 2>/dev/null | grep -Eo '[0-9]+(\.[0-9]+)+' | head -n 1) &&
        [ "$(printf '%s\n%s\n' "$2" "$version" | sort -V | head -n 1)" = "$2" ]; then
        printf '%s\n' "$found"
    else
        printf '%s\n' "$safealign_venv/bin/$1"
    fi
}

safealign_debian_packages
safealign_python venv requirements.txt
safealign_python venv-old requirements-old.txt
PYTHON=$safealign_venv/bin/python
PYTHON_OLD=$safealign_root/build/venv-old/bin/python
CMAKE=$(safealign_tool cmake 3.24)
CTEST=$(dirname "$CMAKE")/ctest
NINJA=$(safealign_tool ninja 1.10)
export PYTHON PYTHON_OLD CMAKE CTEST NINJA

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    for safealign_name in PYTHON PYTHON_OLD CMAKE CTEST NINJA; do
        printf 'export %s=%q\n' "$safealign_name" "${!safealign_name}"
    done
fi
