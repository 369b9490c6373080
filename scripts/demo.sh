#!/usr/bin/env bash
# Prints the zero-copy tensors, copied bytes and anonymous memory for files written by MLX, before and after alignment.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

work=build/demo
mkdir -p "$work/files" "$work/aligned"

# Three trained networks, saved by MLX and distributed in a package. All their tensors are misaligned.
if [ ! -f "$work/files/snap.safetensors" ]; then
    "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.13 --dest "$work" chess-cv==0.7.2
    "$PYTHON" -c "
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for info in wheel.infolist():
        if info.filename.endswith('.safetensors'):
            info.filename = info.filename.rsplit('/', 1)[1]
            wheel.extract(info, sys.argv[2])
" "$work"/chess_cv-0.7.2-*.whl "$work/files"
fi

# A model of the size of a small quantised language model, saved by unmodified MLX.
if [ ! -f "$work/files/model-2999.safetensors" ]; then
    "$PYTHON" scripts/make_model.py "$work/model-2999.safetensors"
    mv "$work/model-2999.safetensors" "$work/files/"
fi

"$CMAKE" -S . -B "$work/build" -G Ninja -DCMAKE_MAKE_PROGRAM="$NINJA" -DCMAKE_BUILD_TYPE=Release \
    -DSAFEALIGN_BUILD_TESTS=OFF -DSAFEALIGN_BUILD_EXAMPLES=ON >"$work/configure.log"
"$CMAKE" --build "$work/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }

echo
"$work/build/examples/demo" "$work/aligned" "$work"/files/*.safetensors
echo
"$PYTHON" scripts/same.py "$work/files" "$work/aligned"
