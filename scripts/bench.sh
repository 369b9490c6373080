#!/usr/bin/env bash
# Prints the table of docs/performance.md, with all libraries in the same run. Results are also written to
# build/bench/table.json. `scripts/bench.sh WORD` runs only the rows whose name contains the word, and
# `scripts/bench.sh plot` draws the two charts.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

out=build/bench
mkdir -p "$out"
"$PYTHON" -c 'import ml_dtypes, matplotlib' 2>/dev/null ||
    "$PYTHON" -m pip install --quiet --disable-pip-version-check ml_dtypes==0.5.4 matplotlib==3.10.8
site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
mlx=$site/mlx
if [ "$out/mlx_peer" -ot benches/peers/mlx_peer.cpp ]; then
    "${CXX:-c++}" -std=c++20 -O2 -isystem "$mlx/include" benches/peers/mlx_peer.cpp -o "$out/mlx_peer" \
        -L"$mlx/lib" -lmlx -Wl,-rpath,"$mlx/lib:$site/mlx_cpu.libs" -Wl,-rpath-link,"$site/mlx_cpu.libs"
fi
export SAFEALIGN_BENCH_PYTHON=$PYTHON
export SAFEALIGN_BENCH_MLX=$PWD/$out/mlx_peer

if [ "${1:-}" = plot ]; then
    cargo bench --locked --quiet --bench table -- plot >"$out/plot.txt"
    "$PYTHON" scripts/plot.py "$out/plot.txt" docs
else
    SAFEALIGN_BENCH_JSON=$PWD/$out/table.json cargo bench --locked --quiet --bench table -- "$@" | tee "$out/table.md"
fi
