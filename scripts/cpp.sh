#!/usr/bin/env bash
# Builds and runs the C and C++ tests three times: with other readers, two versions of MLX and the install tree; with
# valgrind; and with the address and undefined-behaviour sanitizers.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/setup.sh
. "$root/scripts/setup.sh"

jobs=${SAFEALIGN_JOBS:-$(getconf _NPROCESSORS_ONLN)}

# run NAME OPTIONS...: configures, builds and tests in build/NAME. The library is compiled only once.
run() {
    local build=$root/build/$1
    shift
    "$CMAKE" -S "$root" -B "$build" -G Ninja -D CMAKE_MAKE_PROGRAM="$NINJA" -D CMAKE_COMPILE_WARNING_AS_ERROR=ON \
        -D SAFEALIGN_CARGO_TARGET_DIR="$root/build/cargo" "$@" --log-level=WARNING
    "$CMAKE" --build "$build" --parallel "$jobs"
    # It is an error if there are no tests.
    "$CTEST" --test-dir "$build" --output-on-failure --no-tests=error --parallel "$jobs"
}

printf '\n== C and C++ tests, other readers, MLX, install tree\n'
run cpp -D CMAKE_BUILD_TYPE=Release -D SAFEALIGN_PYTHON="$PYTHON" \
    -D SAFEALIGN_PYTHON_OLD="$PYTHON_OLD" -D SAFEALIGN_MLX_INTERPOSE=ON

printf '\n== with valgrind\n'
if command -v valgrind >/dev/null; then
    run cpp-valgrind -D CMAKE_BUILD_TYPE=RelWithDebInfo -D SAFEALIGN_VALGRIND=ON
else
    printf 'SKIPPED: valgrind is not installed\n'
fi

printf '\n== with sanitizers\n'
run cpp-sanitized -D CMAKE_BUILD_TYPE=RelWithDebInfo -D SAFEALIGN_SANITIZE=address,undefined
