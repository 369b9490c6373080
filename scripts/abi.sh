#!/usr/bin/env bash
# Tests the ABI: compares the header with the dump in abi/, and runs programs and libraries of different versions with
# each other. See docs/abi.md.
#
#     scripts/abi.sh            # test
#     scripts/abi.sh --write    # also replace the dump; only before a release
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

out=$PWD/build/abi
dump=abi/safealign-0.2.abi
mkdir -p "$out"

# dump_of HEADER NAME: writes the ABI of a header to build/abi/NAME.abi.
dump_of() {
    "$PYTHON" scripts/abi_stub.py "$1" "$out/$2.so"
    abidw --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed --no-architecture \
        --out-file "$out/$2.abi" "$out/$2.so"
    # The path of this machine.
    sed -i.bak "s|path='$out/|path='|" "$out/$2.abi"
}

# is_compatible DUMP: whether it differs from the dump in abi/ only by additions.
is_compatible() {
    abidiff --no-added-syms --suppressions abi/suppressions.ini "$dump" "$1" >"$out/abidiff.txt" 2>&1
}

# changed NAME SED-SCRIPT: dumps the ABI of a changed header.
changed() {
    sed -E "$2" include/safealign.h >"$out/$1.h"
    if cmp -s include/safealign.h "$out/$1.h"; then
        printf 'the control %s changes nothing\n' "$1" >&2
        exit 1
    fi
    dump_of "$out/$1.h" "$1"
}

if command -v abidw >/dev/null && command -v abidiff >/dev/null; then
    printf '\n== the ABI of the header, compared with abi/\n'
    dump_of include/safealign.h current
    if [ "${1:-}" = --write ]; then
        cp "$out/current.abi" "$dump"
    fi
    if ! is_compatible "$out/current.abi"; then
        cat "$out/abidiff.txt"
        printf 'the ABI changed incompatibly; if this is intended and 0.2 is not released, use `%s`\n' \
            'scripts/abi.sh --write' >&2
        exit 1
    fi
    # The controls: each of these changes breaks programs and must be found.
    changed renumbered 's/^  SA_ERR_IO = 2,/  SA_ERR_IO = 3,/; s/^  SA_ERR_NO_SPACE = 3,/  SA_ERR_NO_SPACE = 2,/'
    changed inserted 's/^(typedef struct sa_view \{)/\1 uint64_t new_field;/'
    changed appended_to_tensor 's/^  uint64_t reserved\[3\];/  uint64_t reserved[4];/'
    changed narrowed 's/^uint64_t sa_plan_file_size\(/uint32_t sa_plan_file_size(/'
    changed removed '/^uint64_t sa_plan_file_size\(/d'
    for name in renumbered inserted appended_to_tensor narrowed removed; do
        if is_compatible "$out/$name.abi"; then
            printf 'the control %s was not found\n' "$name" >&2
            exit 1
        fi
    done
    # These changes are compatible.
    changed added 's/^(uint64_t sa_plan_file_size\()/int sa_new_function(void);\n\1/'
    changed appended 's/^\} sa_write_options;/  uint64_t new_option;\n} sa_write_options;/'
    changed new_status 's/^(  SA_ERR_INTERNAL = 14,)/\1 SA_ERR_NEW = 15,/'
    for name in added appended new_status; do
        if ! is_compatible "$out/$name.abi"; then
            cat "$out/abidiff.txt"
            printf 'the compatible change %s was rejected\n' "$name" >&2
            exit 1
        fi
    done
    echo "compatible; 5 incompatible changes were found, 3 compatible ones accepted"
else
    echo 'SKIPPED: abigail-tools is not installed'
fi

printf '\n== programs and libraries of different versions\n'
CARGO_TARGET_DIR=build/cargo cargo build --release --locked --quiet --lib
RUSTFLAGS="--cfg safealign_grown" CARGO_TARGET_DIR=build/cargo-grown cargo build --release --locked --quiet --lib
SAFEALIGN_GROWN_HEADER=$out/grown cargo test --locked --quiet --test header the_grown_header >/dev/null
for library in plain grown; do
    mkdir -p "$out/lib-$library"
    from=build/cargo
    if [ "$library" = grown ]; then
        from=build/cargo-grown
    fi
    for name in libsafealign.so libsafealign.dylib; do
        if [ -f "$from/release/$name" ]; then
            # Under the SONAME.
            cp "$from/release/$name" "$out/lib-$library/$name"
            ln -sf "$name" "$out/lib-$library/$name.0.2"
        fi
    done
done

flags=(-std=c99 -D_POSIX_C_SOURCE=200809L -g -Wall -Wextra -Werror -Icpp-tests)
for program in plain grown; do
    headers=include defines=()
    if [ "$program" = grown ]; then
        headers=$out/grown defines=(-DSAFEALIGN_GROWN_PROGRAM)
    fi
    for kind in "" -fsanitize=address,undefined; do
        name=$out/program-$program${kind:+-sanitized}
        "${CC:-cc}" "${flags[@]}" ${defines[@]+"${defines[@]}"} ${kind:+"$kind"} "-I$headers" cpp-tests/abi.c \
            "-L$out/lib-$program" -lsafealign -o "$name"
    done
done
for program in plain grown; do
    for library in plain grown; do
        for how in "" sanitized valgrind; do
            run=()
            if [ "$how" = valgrind ]; then
                if ! command -v valgrind >/dev/null; then
                    echo 'SKIPPED: valgrind is not installed'
                    continue
                fi
                run=(valgrind --quiet --leak-check=full --error-exitcode=9 \
                    --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect)
            fi
            binary=$out/program-$program
            if [ "$how" = sanitized ]; then
                binary=$binary-sanitized
            fi
            work=$out/work
            rm -rf "$work"
            mkdir -p "$work"
            printf '%s program, %s library%s: ' "$program" "$library" "${how:+, $how}"
            LD_LIBRARY_PATH=$out/lib-$library ${run[@]+"${run[@]}"} "$binary" "$work" "$library"
        done
    done
done
