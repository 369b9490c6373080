#!/usr/bin/env bash
# Builds the library and a program for aarch64 with a CMake toolchain file, and runs the program in qemu.
#
# Debian's rustc-web can build the standard library for any target. Its packages are unpacked to build/cross instead of
# being installed, so that the system has only one cargo. Requires Debian 12 and root. Takes about three minutes.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/setup.sh
. "$root/scripts/setup.sh"

build=$root/build/cross
rust=$build/rust
if [ ! -x "$rust/usr/bin/cargo" ]; then
    mkdir -p "$build/packages"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y \
        gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user-static >/dev/null
    # Includes dependencies that are not installed.
    mapfile -t packages < <(apt-get -s --no-install-recommends install rustc-web cargo-web rust-web-src |
        sed -n 's/^Inst \([^ ]*\).*/\1/p')
    (cd "$build/packages" && apt-get -qq download "${packages[@]}")
    rm -rf "$rust.part"
    for package in "$build/packages"/*.deb; do
        dpkg -x "$package" "$rust.part"
    done
    # Last, so that an interrupted run is repeated.
    mv "$rust.part" "$rust"
fi

cat >"$build/aarch64.cmake" <<'END'
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
END

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
for library in safealign safealign-static; do
    (
        export LD_LIBRARY_PATH=$rust/usr/lib/x86_64-linux-gnu:$rust/usr/lib/llvm-22/lib
        export RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_unwind
        "$CMAKE" -S "$root/cpp-tests/consumer" -B "$build/$library" -G Ninja -D CMAKE_MAKE_PROGRAM="$NINJA" \
            -D CMAKE_TOOLCHAIN_FILE="$build/aarch64.cmake" -D SAFEALIGN_CARGO="$rust/usr/bin/cargo" \
            -D SAFEALIGN_CARGO_TARGET_DIR="$build/cargo" -D CONSUMER_FROM=add_subdirectory \
            -D CONSUMER_SAFEALIGN="$root" -D CONSUMER_LIBRARY="safealign::$library" --log-level=WARNING
        "$CMAKE" --build "$build/$library"
    )
    (cd "$build/$library" && qemu-aarch64-static -L /usr/aarch64-linux-gnu ./consumer "$version")
    printf 'aarch64: a program with safealign::%s runs\n' "$library"
done
