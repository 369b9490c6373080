#!/usr/bin/env bash
# Runs all tests: Rust, C and C++ (with other readers, valgrind and sanitizers), the ABI, and repaired files.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

if cargo fmt --version >/dev/null 2>&1; then
    cargo fmt --all --check
fi
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
fi
cargo test --workspace --locked

printf '\n== instruction counts\n'
if command -v valgrind >/dev/null; then
    CARGO_TARGET_DIR=build/cargo cargo build --release --locked --quiet --example counted
    "$PYTHON" scripts/instructions.py build/cargo/release/examples/counted
else
    echo 'SKIPPED: valgrind is not installed'
fi

bash scripts/cpp.sh
bash scripts/abi.sh

printf '\n== repaired files, opened by other readers\n'
CARGO_TARGET_DIR=build/cargo cargo build --release --locked --quiet -p safealign-cli
status=0
"$PYTHON" cpp-tests/repair_readers.py build/cargo/release/safealign || status=$?
if [ "$status" -eq 77 ]; then
    echo 'SKIPPED: the models of chess-cv could not be downloaded'
elif [ "$status" -ne 0 ]; then
    exit "$status"
fi
