#!/usr/bin/env bash
# Measures a bundle of 27 files and 2,999 tensors, written by unmodified MLX and loaded by MLX and by safealign, as
# written and aligned; then the same with a memory limit of half the size of the bundle. See docs/mlx-table.md.
#
#     scripts/mlx_table.sh [RUNS]
#
# Each load is a separate process that reads every byte. Requires 5 GB in build/mlx-table, which are kept for the next
# run.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

runs=${1:-5}
work=build/mlx-table
seconds=120 # the time limit of a load with the memory limit
table=$work/build/mlx_table
mkdir -p "$work"

"$CMAKE" -S benches/mlx -B "$work/build" -G Ninja -D CMAKE_MAKE_PROGRAM="$NINJA" -D CMAKE_BUILD_TYPE=Release \
    -D SAFEALIGN_PYTHON="$PYTHON" -D SAFEALIGN_CARGO_TARGET_DIR="$PWD/build/cargo" >"$work/configure.log"
"$CMAKE" --build "$work/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }

# A directory is renamed when it is complete.
if [ ! -d "$work/written" ]; then
    rm -rf "$work/making"
    "$table" write "$work/making"
    mv "$work/making" "$work/written"
    rm -rf "$work/aligned"
fi
if [ ! -d "$work/aligned" ]; then
    rm -rf "$work/making"
    "$table" align "$work/written" "$work/making"
    mv "$work/making" "$work/aligned"
fi

bundle=$(cat "$work"/written/*.safetensors | wc -c)
limit=$((bundle / 2))
sums=$work/sums
: >"$sums"

# The median of a column of the file of runs.
median() {
    sort -n -k "$1,$1" "$work/runs" | awk -v column="$1" '{ value[NR] = $column } END { print value[int((NR + 1) / 2)] }'
}

row() { # FILES LOADER
    "$table" load "$2" "$work/$1" >/dev/null # the page cache is warm from here on
    for _ in $(seq "$runs"); do
        "$table" load "$2" "$work/$1"
    done >"$work/runs"
    cut -d ' ' -f 8,9 "$work/runs" >>"$sums"
    awk -v files="$1" -v loader="$2" -v kib="$(median 3)" -v minor="$(median 4)" -v major="$(median 5)" \
        -v loaded="$(median 6)" -v touched="$(median 7)" 'NR == 1 {
            printf "| %-10s | %-9s | %5d / %5d | %10.1f MiB | %12d | %12d | %7.0f ms | %7.0f ms |\n",
                files, loader, $2, $1, kib / 1024, minor, major, loaded, touched }' "$work/runs"
}

printf '\n%d bytes in 27 files; MLX %s; medians of %d runs, page cache warm\n\n' "$bundle" \
    "$("$PYTHON" -c 'import mlx.core; print(mlx.core.__version__)')" "$runs"
printf '| %-10s | %-9s | %13s | %14s | %12s | %12s | %10s | %10s |\n' \
    files loader zero-copy anonymous 'minor faults' 'major faults' loaded touched
printf '|------------|-----------|--------------:|---------------:|-------------:|-------------:|-----------:|-----------:|\n'
for files in written aligned; do
    for loader in mlx safealign; do
        row "$files" "$loader"
    done
done
if [ "$(sort -u "$sums" | wc -l)" -ne 1 ]; then
    echo "mlx_table: the loaded bytes differ" >&2
    exit 1
fi

# A memory control group, version 1 or 2.
group=
if [ -w /sys/fs/cgroup/memory ] && mkdir "/sys/fs/cgroup/memory/safealign-$$" 2>/dev/null; then
    group=/sys/fs/cgroup/memory/safealign-$$
    echo "$limit" >"$group/memory.limit_in_bytes"
    # Also limits swap, if the kernel supports it.
    echo "$limit" 2>/dev/null >"$group/memory.memsw.limit_in_bytes" || true
elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null && mkdir "/sys/fs/cgroup/safealign-$$" 2>/dev/null; then
    group=/sys/fs/cgroup/safealign-$$
    echo "$limit" >"$group/memory.max"
    echo 0 2>/dev/null >"$group/memory.swap.max" || true
fi
if [ -z "$group" ]; then
    printf '\nSKIPPED: loading with a memory limit requires root and a memory control group\n'
    exit 0
fi
trap 'rmdir "$group"' EXIT

limited_row() { # FILES LOADER
    local code=0 outcome numbers='' start
    # Cached pages are charged to the process that read them.
    "$table" evict "$work/$1"
    start=$SECONDS
    numbers=$(
        # Expanded by the inner shell, which joins the group.
        # shellcheck disable=SC2016
        timeout --signal=KILL "$seconds" sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' \
            sh "$group" "$table" load "$2" "$work/$1" 2>/dev/null
    ) || code=$?
    case $code in
        0) outcome=$(awk '{ printf "finished in %.1f s, %.1f MiB anonymous, %d major faults", $7 / 1000, $3 / 1024, $5 }' <<<"$numbers") ;;
        124 | 137)
            outcome="killed, out of memory"
            [ $((SECONDS - start)) -lt "$seconds" ] || outcome="not finished after $seconds s" ;;
        *) outcome="failed with $code" ;;
    esac
    printf '| %-10s | %-9s | %-60s |\n' "$1" "$2" "$outcome"
    limited_code=$code
}

printf '\n%d bytes of memory, page cache cold; time limit %d s\n\n' "$limit" "$seconds"
printf '| %-10s | %-9s | %-60s |\n|------------|-----------|--------------------------------------------------------------|\n' \
    files loader outcome
limited_row written mlx
limited_row written safealign
unaligned=$limited_code
limited_row aligned mlx
limited_row aligned safealign
if [ "$limited_code" -ne 0 ] || [ "$unaligned" -eq 0 ]; then
    echo "mlx_table: with the memory limit, aligned files must load and misaligned files must not" >&2
    exit 1
fi
